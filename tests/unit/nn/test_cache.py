"""The key-value cache keeps what was appended, in order, and refuses what does not fit."""

import pytest
import torch

from lmworks.base.errors import ConfigError
from lmworks.nn.attention.cache import KVCache


def make_cache(**changes) -> KVCache:
    sizes = {"shapes": [(2, 4, 4)] * 2, "batch_size": 3, "max_seq_len": 8}
    return KVCache(**(sizes | changes))


def tokens(num: int, value: float) -> torch.Tensor:
    return torch.full((3, 2, num, 4), value)


def test_append_returns_everything_held_so_far():
    cache = make_cache()
    cache.append(0, tokens(3, 1.0), tokens(3, -1.0))
    cache.advance(3)
    k, v = cache.append(0, tokens(2, 2.0), tokens(2, -2.0))
    assert k[0, 0, :, 0].tolist() == [1, 1, 1, 2, 2]
    assert torch.equal(v, -k)


def test_length_moves_only_when_all_layers_are_done():
    cache = make_cache()
    cache.append(0, tokens(3, 1.0), tokens(3, 1.0))
    assert cache.length == 0
    cache.append(1, tokens(3, 1.0), tokens(3, 1.0))
    cache.advance(3)
    assert cache.length == 3


def test_more_tokens_than_fit_are_refused_and_nothing_is_lost():
    cache = make_cache()
    cache.append(0, tokens(6, 1.0), tokens(6, 1.0))
    cache.advance(6)
    with pytest.raises(ConfigError, match=r"3 more tokens after 6 cached ones.*at most 2 do"):
        cache.append(0, tokens(3, 2.0), tokens(3, 2.0))
    assert cache.length == 6
    assert cache.keys[0][0, 0, :6, 0].tolist() == [1] * 6


def test_truncated_tokens_are_overwritten():
    cache = make_cache()
    cache.append(0, tokens(6, 1.0), tokens(6, 1.0))
    cache.advance(6)
    cache.truncate(2)
    k, _ = cache.append(0, tokens(1, 5.0), tokens(1, 5.0))
    assert k[0, 0, :, 0].tolist() == [1, 1, 5]


@pytest.mark.parametrize("length", [-1, 1])
def test_truncate_cannot_lengthen(length):
    with pytest.raises(ValueError, match=f"length={length} is not between 0 and"):
        make_cache().truncate(length)


def test_size_is_two_buffers_per_layer():
    cache = make_cache(dtype=torch.bfloat16)
    assert cache.size_bytes == 2 * 2 * (3 * 2 * 8 * 4) * 2


def test_keys_and_values_of_a_layer_may_have_other_sizes():
    cache = make_cache(shapes=[(2, 4, 4), (1, 6, 2)])
    keys, values = cache.append(1, torch.ones(3, 1, 5, 6), torch.ones(3, 1, 5, 2))
    assert keys.shape == (3, 1, 5, 6)
    assert values.shape == (3, 1, 5, 2)
    assert cache.size_bytes == 4 * 3 * 8 * (2 * 8 + 8)
