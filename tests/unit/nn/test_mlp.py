"""Each activation equals its formula in float64; MLPs are two or three matrices around it."""

import math

import pytest
import torch
from torch import Tensor

from lmworks.nn.config import GATED_ACTIVATIONS, MLPConfig
from lmworks.nn.mlp import make_mlp
from lmworks.ops.activation import GATE_ACTIVATIONS, PLAIN_ACTIVATIONS

X = torch.cat([torch.linspace(-8, 8, 4001, dtype=torch.float64), torch.zeros(1).double()])


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def erf_gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS = {
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "gelu": erf_gelu,
    "gelu_tanh": tanh_gelu,
    "silu": lambda x: x * sigmoid(x),
    "relu2": lambda x: torch.where(x > 0, x * x, 0.0),
    "glu": sigmoid,
    "bilinear": lambda x: x,
    "reglu": lambda x: torch.where(x > 0, x, 0.0),
    "geglu": erf_gelu,
    "geglu_tanh": tanh_gelu,
    "swiglu": lambda x: x * sigmoid(x),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_activation_is_its_formula(name):
    activation = (PLAIN_ACTIVATIONS | GATE_ACTIVATIONS)[name]
    torch.testing.assert_close(activation(X), FORMULAS[name](X), rtol=1e-12, atol=1e-14)


def test_every_configurable_activation_exists():
    assert set(PLAIN_ACTIVATIONS) | set(GATE_ACTIVATIONS) == set(FORMULAS)
    assert set(GATE_ACTIVATIONS) == GATED_ACTIVATIONS


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("use_bias", [False, True])
def test_mlp_is_its_formula(name, use_bias):
    mlp = make_mlp(MLPConfig(activation=name, d_ff=7), d_model=5, use_bias=use_bias).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in mlp.parameters():
            weight.normal_(generator=generator)
    w = {k: v.detach() for k, v in mlp.named_parameters()}
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator)

    def linear(x: Tensor, layer: str) -> Tensor:
        return x @ w[f"{layer}.weight"].T + w.get(f"{layer}.bias", torch.zeros(1).double())

    if name in GATED_ACTIVATIONS:
        hidden = FORMULAS[name](linear(x, "gate")) * linear(x, "up")
    else:
        hidden = FORMULAS[name](linear(x, "up"))
    torch.testing.assert_close(mlp(x), linear(hidden, "down"))
