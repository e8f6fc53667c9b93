"""Norms equal their formulas in float64."""

import copy

import pytest
import torch

from lmworks.nn.config import NormConfig
from lmworks.nn.norm import LayerNorm, OffsetRMSNorm, RMSNorm, make_norm


def filled(norm):
    with torch.no_grad():
        for weight in norm.parameters():
            weight.uniform_(-2, 2, generator=torch.Generator().manual_seed(0))
    return norm


X = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1)) * 3 + 1


def test_rms_norm_is_its_formula():
    norm = filled(RMSNorm(16, eps=0.1))
    x = X.double()
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight.double()
    torch.testing.assert_close(norm(X).double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("use_bias", [False, True])
def test_layer_norm_is_its_formula(use_bias):
    norm = filled(LayerNorm(16, eps=0.1, use_bias=use_bias))
    x = X.double()
    spread = (x.var(-1, correction=0, keepdim=True) + 0.1).sqrt()
    expected = (x - x.mean(-1, keepdim=True)) / spread * norm.weight.double()
    if use_bias:
        expected = expected + norm.bias.double()
    torch.testing.assert_close(norm(X).double(), expected, rtol=1e-6, atol=1e-6)


def test_rms_norm_in_bf16_takes_its_statistics_in_fp32():
    # 1000 equal squares summed in bf16 would stop growing at 256.
    norm = filled(RMSNorm(1000, eps=1e-5)).to(torch.bfloat16)
    out = norm(torch.full((1, 1000), 7.0, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out[0], norm.weight.detach())


def test_offset_norm_multiplies_by_one_more_than_its_weight():
    norm = filled(OffsetRMSNorm(16, eps=0.1))
    x = X.double()
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 0.1).sqrt() * (1 + norm.weight.double())
    torch.testing.assert_close(norm(X).double(), expected, rtol=1e-6, atol=1e-6)


def test_offset_norm_in_bf16_rounds_once():
    norm, x = filled(OffsetRMSNorm(16, eps=0.1)).bfloat16(), X.bfloat16()
    with torch.no_grad():
        exact = copy.deepcopy(norm).float()(x.float())
        assert torch.equal(norm(x), exact.bfloat16())


def test_offset_is_for_rms_norm_only():
    with pytest.raises(ValueError, match="unit_offset is for kind=rmsnorm; kind=layernorm"):
        NormConfig(kind="layernorm", unit_offset=True)


@pytest.mark.parametrize(
    ("kind", "use_bias", "names"),
    [
        ("rmsnorm", True, ["weight"]),
        ("layernorm", False, ["weight"]),
        ("layernorm", True, ["weight", "bias"]),
    ],
)
def test_only_layer_norm_has_a_bias(kind, use_bias, names):
    norm = make_norm(NormConfig(kind=kind), 4, use_bias=use_bias)
    assert [name for name, _ in norm.named_parameters()] == names
