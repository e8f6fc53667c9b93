"""Attention equals the plain formula in float64 for every head layout, mask and cap."""

import pytest
import torch
from torch import Tensor

from lmworks.nn.attention.gqa import GroupedQueryAttention
from lmworks.nn.attention.mask import packed_layer_mask
from lmworks.nn.config import AttentionConfig, FullMaskConfig, NormConfig
from lmworks.nn.position import packed_positions
from lmworks.ops.attention import attention

GENERATOR = torch.Generator().manual_seed(0)


def make_attention(num_kv_heads: int, dropout: float = 0.0, **changes) -> GroupedQueryAttention:
    config = AttentionConfig(num_heads=4, num_kv_heads=num_kv_heads, head_dim=6, **changes)
    layer = GroupedQueryAttention(
        config, d_model=16, norm=NormConfig(), use_bias=True, dropout=dropout, layer=0
    )
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    return layer.double().eval()


def plain_attention(
    layer: GroupedQueryAttention, x: Tensor, mask: Tensor, *, logit_softcap: float = 0.0
) -> Tensor:
    """One head at a time, one query at a time."""
    q, k, v = (f(x).unflatten(-1, (-1, 6)) for f in (layer.q, layer.k, layer.v))
    group = layer.num_heads // layer.num_kv_heads
    out = torch.zeros_like(q)
    for b in range(x.shape[0]):
        for h in range(layer.num_heads):
            for t in range(x.shape[1]):
                scores = k[b, :, h // group] @ q[b, t, h] / 6**0.5
                if logit_softcap:
                    scores = logit_softcap * torch.tanh(scores / logit_softcap)
                weights = torch.exp(scores) * mask[b, t]
                out[b, t, h] = (weights / weights.sum()) @ v[b, :, h // group]
    return layer.o(out.flatten(2))


X = torch.randn(2, 7, 16, dtype=torch.float64, generator=GENERATOR)
CAUSAL = torch.ones(2, 7, 7, dtype=torch.float64).tril()


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("logit_softcap", [0.0, 2.0])
def test_attention_is_its_formula(num_kv_heads, logit_softcap):
    layer = make_attention(num_kv_heads, logit_softcap=logit_softcap)
    expected = plain_attention(layer, X, CAUSAL, logit_softcap=logit_softcap)
    torch.testing.assert_close(layer(X), expected)


@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_grouped_heads_are_full_heads_with_repeated_keys_and_values(num_kv_heads):
    grouped, full = make_attention(num_kv_heads), make_attention(4)
    state = grouped.state_dict()
    for name in ["k.weight", "k.bias", "v.weight", "v.bias"]:
        heads = state[name].unflatten(0, (num_kv_heads, 6))
        state[name] = heads.repeat_interleave(4 // num_kv_heads, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    torch.testing.assert_close(grouped(X), full(X))


@pytest.mark.parametrize("logit_softcap", [0.0, 2.0])
def test_documents_do_not_see_each_other(logit_softcap):
    layer = make_attention(2, logit_softcap=logit_softcap)
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [3, 4, 4, 4, 4, 9, 9]])
    same = (ids[:, :, None] == ids[:, None, :]).double()
    expected = plain_attention(layer, X, CAUSAL * same, logit_softcap=logit_softcap)
    mask = packed_layer_mask(FullMaskConfig(), ids, packed_positions(ids))
    torch.testing.assert_close(layer(X, mask=mask), expected)


def test_large_softcap_changes_nothing():
    q, k, v = torch.randn(3, 2, 4, 7, 6, generator=GENERATOR)
    capped = attention(q, k, v, logit_softcap=1e4)
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(capped, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("logit_softcap", [0.0, 2.0])
def test_dropout_drops_weights_in_training_only(logit_softcap):
    layer = make_attention(2, dropout=0.5, logit_softcap=logit_softcap)
    assert torch.equal(layer(X), layer(X))
    layer.train()
    torch.manual_seed(0)
    first, second = layer(X), layer(X)
    assert not torch.equal(first, second)


def test_scores_do_not_grow_with_the_input_under_query_key_norm():
    layer = make_attention(2, qk_norm=True)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
    layer.v.weight.requires_grad_(False)
    # Values scale with the input, attention weights do not: the output scales linearly.
    torch.testing.assert_close(layer(1000 * X), 1000 * layer(X), rtol=1e-4, atol=1e-4)


def test_full_query_key_norm_takes_all_heads_together():
    layer = make_attention(2, qk_norm=True, qk_norm_scope="full")
    assert layer.q_norm.weight.shape == (24,)
    assert layer.k_norm.weight.shape == (12,)
    seen: list[Tensor] = []
    layer.k_norm.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    layer(X)
    k = layer.k(X)
    expected = k / (k.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.k_norm.weight
    # Norms take their statistics in fp32.
    torch.testing.assert_close(seen[0], expected, rtol=1e-6, atol=1e-6)


def test_biases_of_queries_keys_and_values_alone():
    config = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=6, qkv_bias=True)
    layer = GroupedQueryAttention(
        config, d_model=16, norm=NormConfig(), use_bias=False, dropout=0.0, layer=0
    )
    shapes = {name: tuple(weight.shape) for name, weight in layer.named_parameters()}
    assert [name for name in shapes if name.endswith("bias")] == ["q.bias", "k.bias", "v.bias"]
    assert shapes == config.weight_shapes(16, norm=NormConfig(), use_bias=False)


def test_scale_multiplies_the_scores():
    plain, scaled = make_attention(2), make_attention(2, scale=2 / 6**0.5)
    with torch.no_grad():
        plain.q.weight.mul_(2)
        plain.q.bias.mul_(2)
    torch.testing.assert_close(scaled(X), plain(X))
