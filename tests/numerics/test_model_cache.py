"""Decoding with the key-value cache gives the logits of the whole sequence."""

import pytest
import torch

from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder


def small(**changes) -> ModelConfig:
    values = {
        "vocab_size": 61,
        "max_seq_len": 32,
        "d_model": 32,
        "num_layers": 2,
        "attention": {"num_heads": 4},
        "mlp": {"d_ff": 48},
        "init": {"std": 0.2},
    }
    return ModelConfig.model_validate(values | changes)


@pytest.mark.parametrize("position", ["rope", "learned", "sinusoidal", "none", "alibi", "t5"])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_cached_logits_equal_uncached(position, num_kv_heads, softcap):
    attention = {"num_heads": 4, "num_kv_heads": num_kv_heads, "logit_softcap": softcap}
    model = Decoder(small(attention=attention, position={"kind": position})).eval()
    tokens = torch.randint(61, (2, 24), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(2)
    with torch.no_grad():
        # A prompt, single tokens, then several at once: the three shapes of decoding.
        pieces = [model(piece, cache=cache) for piece in tokens.split([9, 1, 1, 13], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), atol=1e-4, rtol=0)


def test_truncated_cache_continues_as_if_the_rest_was_never_seen():
    model = Decoder(small()).eval()
    tokens = torch.randint(61, (1, 20), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(1)
    with torch.no_grad():
        model(tokens, cache=cache)
        cache.truncate(10)
        again = model(tokens[:, 10:15], cache=cache)
        torch.testing.assert_close(again, model(tokens[:, :15])[:, 10:], atol=1e-4, rtol=0)


LOCAL = {"attention": {"mask": {"kind": "window", "size": 5}}}
SINKS = {"attention": {"mask": {"kind": "window", "size": 5, "num_sink_tokens": 2}}}


@pytest.mark.parametrize("position", ["rope", "alibi", "t5", "learned"])
@pytest.mark.parametrize("kind", [LOCAL, SINKS], ids=["window", "sinks"])
def test_cached_logits_equal_uncached_where_layers_see_a_window(kind, position):
    model = Decoder(
        small(
            max_seq_len=220,
            num_layers=4,
            layer_kinds={"local": kind, "global": {}},
            layer_pattern=["local*3", "global"],
            position={"kind": position},
        )
    ).eval()
    tokens = torch.randint(61, (2, 220), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(2)
    assert cache.keys[0].shape[2] < 80 < cache.keys[3].shape[2] == 220
    with torch.no_grad():
        pieces = [model(piece, cache=cache) for piece in tokens.split([9, *[1] * 81, 130], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), atol=1e-4, rtol=0)


def test_packed_documents_equal_separate_ones_where_layers_see_a_window():
    model = Decoder(small(max_seq_len=400, attention={"num_heads": 4} | LOCAL["attention"])).eval()
    lengths = [150, 3, 200]
    tokens = torch.randint(61, (1, 353), generator=torch.Generator().manual_seed(1))
    ids = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    with torch.no_grad():
        packed = model(tokens, document_ids_BT=ids)
        alone = torch.cat([model(piece) for piece in tokens.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, atol=1e-4, rtol=0)
