"""The key-value cache keeps what was appended, in order, and refuses what does not fit."""

import pytest
import torch

from lmworks.base.errors import ConfigError
from lmworks.nn.attention.cache import KVCache
from lmworks.nn.config import WindowMaskConfig
from lmworks.nn.config.mask import ROLLBACK_TOKENS


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


WINDOW = WindowMaskConfig(size=16, num_sink_tokens=2)


def numbered(start: int, num: int) -> torch.Tensor:
    """Keys that tell their position."""
    return torch.arange(start, start + num).float()[:, None].expand(1, 1, num, 2)


def window_cache(mask: WindowMaskConfig = WINDOW, max_seq_len: int = 100_000) -> KVCache:
    return KVCache([(1, 2, 2)], batch_size=1, max_seq_len=max_seq_len, masks=[mask])


def feed(cache: KVCache, num: int) -> list[int]:
    """Positions of the keys returned for `num` more tokens."""
    new = numbered(cache.length, num)
    k, v = cache.append(0, new, -new)
    assert torch.equal(v, -k)
    cache.advance(num)
    return [int(x) for x in k[0, 0, :, 0]]


@pytest.mark.parametrize("num_sink_tokens", [0, 2])
@pytest.mark.parametrize("piece", [1, 7, 300])
def test_window_layers_hold_a_bounded_number_of_tokens(piece, num_sink_tokens):
    cache = window_cache(WindowMaskConfig(size=16, num_sink_tokens=num_sink_tokens))
    held = cache.size_bytes
    assert held == 2 * 2 * 4 * (num_sink_tokens + 15 + 32 + 32)
    while cache.length < 2000:
        before = cache.length
        cache.check_room(piece)
        expected = cache.span(0, piece).positions(torch.device("cpu")).tolist()
        positions = feed(cache, piece)
        assert positions == expected
        assert positions[:num_sink_tokens] == list(range(min(num_sink_tokens, len(positions))))
        first_needed = max(0, before - 15)
        assert positions[-(piece + before - first_needed) :] == list(
            range(first_needed, before + piece)
        )
    assert cache.size_bytes == held


def test_a_window_alone_returns_no_key_out_of_sight():
    cache = window_cache(WindowMaskConfig(size=16))
    feed(cache, 50)
    for _ in range(200):
        assert feed(cache, 1) == list(range(cache.length - 16, cache.length))


def test_window_layers_go_back_by_a_rejected_draft():
    cache = window_cache()
    feed(cache, 1000)
    for _ in range(50):
        feed(cache, 9)
        cache.truncate(cache.length - 8)
    length = cache.length
    cache.truncate(length - ROLLBACK_TOKENS)
    assert feed(cache, 1)[-16:] == list(range(length - 32 - 15, length - 32 + 1))


def test_going_back_too_far_is_refused_and_loses_nothing():
    cache = window_cache()
    feed(cache, 1000)
    with pytest.raises(ConfigError, match=r"from 1000 tokens to 900: layers with window.*968 at"):
        cache.truncate(900)
    assert cache.length == 1000
    assert feed(cache, 1)[-16:] == list(range(985, 1001))


@pytest.mark.parametrize("piece", [1, 9, 500])
def test_a_failed_forward_pass_leaves_window_layers_as_they_were(piece):
    cache, other = window_cache(), window_cache()
    for one in (cache, other):
        feed(one, 60)
    cache.append(0, numbered(777, piece), numbered(777, piece))  # and the next layer fails
    assert feed(cache, 3)[-18:] == feed(other, 3)[-18:]
    assert feed(cache, 1)[-16:] == list(range(48, 64))


def test_a_repeated_cache_goes_on_alone():
    cache = window_cache()
    feed(cache, 300)
    wide = cache.repeated(3)
    k, _ = wide.append(0, numbered(300, 1).expand(3, -1, -1, -1), torch.zeros(3, 1, 1, 2))
    wide.advance(1)
    for one in k[:, 0, :, 0]:
        assert one[-16:].tolist() == list(range(285, 301))
    assert (cache.length, wide.length) == (300, 301)


def test_a_window_wider_than_the_context_needs_the_context_only():
    assert window_cache(max_seq_len=10).size_bytes == 2 * 2 * 4 * 10
