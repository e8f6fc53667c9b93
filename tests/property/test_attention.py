"""Every form of attention equals the masked dense one, in value and gradient; cached equals whole.

In float64: a sum of up to 400 terms of size 10 is off by 400 * 10 * 1e-16 < 1e-12, and no form adds
more than a few such sums up, so 1e-10 leaves room for rounding only.
Shapes: B batch, H query heads, K kv heads, T queries, S keys, D elements of a key, E of a value.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from lmworks.base.errors import ConfigError
from lmworks.nn.attention.cache import KVCache
from lmworks.nn.attention.gqa import GroupedQueryAttention
from lmworks.nn.attention.mask import KeySpan, layer_mask, packed_layer_mask, visible
from lmworks.nn.config import AttentionConfig, MaskConfig, NormConfig
from lmworks.nn.position import packed_positions
from lmworks.ops.attention import attention
from lmworks.ops.attention.reference import reference_attention

CPU = torch.device("cpu")
MASK = TypeAdapter(MaskConfig)
EXACT = {"rtol": 1e-10, "atol": 1e-10}

MASKS = st.one_of(
    st.just({"kind": "full"}),
    st.fixed_dictionaries({"kind": st.just("window"), "size": st.integers(1, 40)}),
    st.fixed_dictionaries(
        {
            "kind": st.just("window"),
            "size": st.integers(1, 40),
            "num_sink_tokens": st.integers(0, 5),
        }
    ),
    st.fixed_dictionaries(
        {"kind": st.just("strided"), "stride": st.integers(1, 9), "window": st.integers(1, 9)}
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("block"),
            "block_size": st.integers(1, 20),
            "num_local_blocks": st.integers(1, 3),
            "num_global_tokens": st.integers(0, 5),
        }
    ),
)
HEADS = st.tuples(st.integers(1, 2), st.integers(1, 3))
"""kv heads, and query heads for each."""


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def assert_same_values_and_gradients(actual, expected, inputs) -> None:
    torch.testing.assert_close(actual, expected, **EXACT)
    weight = draw(*expected.shape, seed=9).detach()
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    got = torch.autograd.grad((actual * weight).sum(), inputs)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@settings(max_examples=80)
@given(
    mask=MASKS,
    heads=HEADS,
    num_queries=st.one_of(st.integers(1, 20), st.integers(100, 300)),
    num_cached=st.integers(0, 50),
    dims=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    cap=st.sampled_from([0.0, 2.0]),
    has_sinks=st.booleans(),
    has_bias=st.booleans(),
    holds_all=st.booleans(),
)
def test_every_form_is_the_masked_dense_one(
    *, mask, heads, num_queries, num_cached, dims, cap, has_sinks, has_bias, holds_all
):
    config, (kv_heads, groups) = MASK.validate_python(mask), heads
    keys = KeySpan(0, 0, num_cached + num_queries)
    if config.reach is not None and not holds_all:
        start = max(0, num_cached - config.reach)
        keys = KeySpan(config.num_first_tokens, start, keys.end).joined()
    q = draw(2, kv_heads * groups, num_queries, dims[0], seed=1)
    k = draw(2, kv_heads, keys.num_keys, dims[0], seed=2)
    v = draw(2, kv_heads, keys.num_keys, dims[1], seed=3)
    sinks = draw(kv_heads * groups, seed=4) if has_sinks else None
    bias = draw(kv_heads * groups, num_queries, keys.num_keys, seed=5) if has_bias else None
    options = {"bias": bias, "sinks": sinks, "logit_softcap": cap}
    dense = visible(config, torch.arange(num_cached, keys.end), keys.positions(CPU))
    actual = attention(q, k, v, mask=layer_mask(config, num_queries, keys, CPU), **options)
    expected = reference_attention(q, k, v, mask=dense, **options)
    inputs = [x for x in (q, k, v, sinks, bias) if x is not None]
    assert_same_values_and_gradients(actual, expected, inputs)


@settings(max_examples=50)
@given(
    mask=MASKS,
    heads=HEADS,
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    cap=st.sampled_from([0.0, 2.0]),
    has_sinks=st.booleans(),
)
def test_packed_documents_are_computed_as_each_alone(mask, heads, lengths, cap, has_sinks):
    config, (kv_heads, groups) = MASK.validate_python(mask), heads
    total = sum(lengths)
    q = draw(1, kv_heads * groups, total, 3, seed=1)
    k, v = draw(1, kv_heads, total, 3, seed=2), draw(1, kv_heads, total, 2, seed=3)
    sinks = draw(kv_heads * groups, seed=4) if has_sinks else None
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    packed = packed_layer_mask(config, ids, packed_positions(ids))
    options = {"sinks": sinks, "logit_softcap": cap}
    actual = attention(q, k, v, mask=packed, **options)
    pieces = []
    for one_q, one_k, one_v in zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True):
        index = torch.arange(one_q.shape[2])
        seen = visible(config, index, index)
        pieces.append(reference_attention(one_q, one_k, one_v, mask=seen, **options))
    inputs = [x for x in (q, k, v, sinks) if x is not None]
    assert_same_values_and_gradients(actual, torch.cat(pieces, dim=2), inputs)


@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize(
    "mask",
    [
        {"kind": "full"},
        {"kind": "window", "size": 20},
        {"kind": "window", "size": 3, "num_sink_tokens": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("num_tokens", [5, 130])
def test_gradients_are_those_of_finite_differences(num_tokens, mask, has_sinks, cap):
    made = layer_mask(MASK.validate_python(mask), num_tokens, KeySpan(0, 0, num_tokens), CPU)
    inputs = [draw(1, 2, num_tokens, 2, seed=1), draw(1, 1, num_tokens, 2, seed=2)]
    inputs += [draw(1, 1, num_tokens, 1, seed=3)] + [draw(2, seed=4)] * has_sinks

    def outcome(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        return attention(q, k, v, mask=made, sinks=sinks, logit_softcap=cap)

    assert torch.autograd.gradcheck(outcome, inputs, fast_mode=num_tokens > 5)


def make_layer(config: AttentionConfig) -> GroupedQueryAttention:
    layer = GroupedQueryAttention(
        config, d_model=6, norm=NormConfig(), use_bias=False, dropout=0.0, layer=0
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(0, 1, generator=generator)
    return layer.double().eval()


@settings(max_examples=60)
@given(
    mask=MASKS,
    heads=HEADS,
    pieces=st.lists(st.one_of(st.just(1), st.integers(1, 150)), min_size=1, max_size=12),
    sinks=st.booleans(),
    cap=st.sampled_from([0.0, 2.0]),
)
def test_tokens_piece_by_piece_through_the_cache_are_the_whole(mask, heads, pieces, sinks, cap):
    config = AttentionConfig(
        num_heads=heads[0] * heads[1],
        num_kv_heads=heads[0],
        head_dim=2,
        sinks=sinks,
        logit_softcap=cap,
        mask=mask,
    )
    layer, total = make_layer(config), sum(pieces)
    x = draw(2, total, 6, seed=1).detach()
    cache = KVCache(
        [config.cache_shape],
        batch_size=2,
        max_seq_len=total,
        masks=[config.mask],
        dtype=torch.float64,
    )
    index, outputs = torch.arange(total), []
    with torch.no_grad():
        for piece in x.split(pieces, dim=1):
            num_tokens = piece.shape[1]
            cache.check_room(num_tokens)
            seen = layer_mask(config.mask, num_tokens, cache.span(0, num_tokens), CPU)
            outputs.append(layer(piece, mask=seen, cache=cache))
            cache.advance(num_tokens)
        whole = layer(x, mask=visible(config.mask, index, index))
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, **EXACT)


@settings(max_examples=60)
@given(
    size=st.integers(1, 20),
    num_sink_tokens=st.integers(0, 4),
    pieces=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    data=st.data(),
)
def test_a_cache_goes_back_or_says_that_it_cannot(size, num_sink_tokens, pieces, data):
    config = AttentionConfig(
        num_heads=1,
        head_dim=2,
        mask={"kind": "window", "size": size, "num_sink_tokens": num_sink_tokens},
    )
    layer, total = make_layer(config), sum(pieces)
    x = draw(1, total + 1, 6, seed=1).detach()
    cache = KVCache(
        [config.cache_shape],
        batch_size=1,
        max_seq_len=total + 1,
        masks=[config.mask],
        dtype=torch.float64,
    )

    def feed(piece: Tensor) -> Tensor:
        cache.check_room(piece.shape[1])
        seen = layer_mask(config.mask, piece.shape[1], cache.span(0, piece.shape[1]), CPU)
        out = layer(piece, mask=seen, cache=cache)
        cache.advance(piece.shape[1])
        return out

    with torch.no_grad():
        for piece in x[:, :total].split(pieces, dim=1):
            feed(piece)
        back_to = data.draw(st.integers(0, total))
        try:
            cache.truncate(back_to)
        except ConfigError:
            assert total - back_to > 32
            assert cache.length == total
            return
        index = torch.arange(back_to + 1)
        whole = layer(x[:, : back_to + 1], mask=visible(config.mask, index, index))
        again = feed(x[:, back_to : back_to + 1])
    torch.testing.assert_close(again, whole[:, -1:], **EXACT)
