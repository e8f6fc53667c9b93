"""The feed-forward half of a block: plain and gated (GLU) activations.

Sources: GELU, Hendrycks & Gimpel 2016 (arXiv 1606.08415); ReLU^2, So et al. 2021 (2109.08668);
GLU family, Shazeer 2020 (2002.05202). A new activation is one entry in a table here and one name
in `nn.config`. Shapes: B batch, T tokens, C residual channels, F d_ff.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lmworks.nn.config import MLPConfig
from lmworks.nn.linear import Linear


def relu2(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """max(x, 0)^2."""
    return F.relu(x).square()


def gelu_tanh(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), GPT-2's GELU."""
    return F.gelu(x, approximate="tanh")


def identity(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """x."""
    return x


PLAIN_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "relu2": relu2,
}

GATE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": torch.sigmoid,
    "bilinear": identity,
    "reglu": F.relu,
    "geglu": F.gelu,
    "geglu_tanh": gelu_tanh,
    "swiglu": F.silu,
}


class MLP(nn.Module):
    """down(activation(up(x)))."""

    def __init__(self, config: MLPConfig, *, d_model: int, use_bias: bool) -> None:
        super().__init__()
        self.activation = PLAIN_ACTIVATIONS[config.activation]
        self.up = Linear(d_model, config.d_ff, bias=use_bias)
        self.down = Linear(config.d_ff, d_model, bias=use_bias)

    def forward(self, x_BTC: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        """Widen, bend, narrow."""
        return self.down(self.activation(self.up(x_BTC)))


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, config: MLPConfig, *, d_model: int, use_bias: bool) -> None:
        super().__init__()
        self.activation = GATE_ACTIVATIONS[config.activation]
        self.gate = Linear(d_model, config.d_ff, bias=use_bias)
        self.up = Linear(d_model, config.d_ff, bias=use_bias)
        self.down = Linear(config.d_ff, d_model, bias=use_bias)

    def forward(self, x_BTC: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        """Widen twice, let one bend gate the other, narrow."""
        return self.down(self.activation(self.gate(x_BTC)) * self.up(x_BTC))


def make_mlp(config: MLPConfig, *, d_model: int, use_bias: bool) -> MLP | GatedMLP:
    """The MLP that `config` names."""
    kind = GatedMLP if config.is_gated else MLP
    return kind(config, d_model=d_model, use_bias=use_bias)
