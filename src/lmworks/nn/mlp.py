"""The feed-forward half of a block: plain and gated (GLU) activations.

The activations themselves are in `ops.activation`. Shapes: B batch, T tokens, C residual channels,
F d_ff.
"""

from jaxtyping import Float
from torch import Tensor, nn

from lmworks.nn.config import MLPConfig
from lmworks.nn.linear import Linear
from lmworks.ops.activation import GATE_ACTIVATIONS, PLAIN_ACTIVATIONS


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
