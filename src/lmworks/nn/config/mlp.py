"""The feed-forward half of a block as data."""

from typing import Literal

from pydantic import PositiveInt

from lmworks.base.config import Config
from lmworks.nn.config.shapes import Shapes, linear_shapes

PlainActivation = Literal["relu", "gelu", "gelu_tanh", "silu", "relu2"]
GatedActivation = Literal["glu", "bilinear", "reglu", "geglu", "geglu_tanh", "swiglu"]
Activation = Literal[PlainActivation, GatedActivation]
GATED_ACTIVATIONS: frozenset[str] = frozenset(
    {"glu", "bilinear", "reglu", "geglu", "geglu_tanh", "swiglu"}
)


class MLPConfig(Config):
    """One MLP that every token goes through."""

    kind: Literal["dense"] = "dense"
    activation: Activation = "swiglu"
    """relu gelu gelu_tanh silu relu2, or gated: glu bilinear reglu geglu geglu_tanh swiglu."""
    d_ff: PositiveInt
    """Width of the hidden layer. Left out in a model config: `default_d_ff` of d_model."""

    @property
    def is_gated(self) -> bool:
        """Whether there is a third matrix whose output multiplies the activation."""
        return self.activation in GATED_ACTIVATIONS

    @property
    def num_matrices(self) -> int:
        """Weight matrices of d_model x d_ff elements each."""
        return 3 if self.is_gated else 2

    def weight_shapes(self, d_model: int, *, use_bias: bool) -> Shapes:
        """Of the MLP's own weights."""
        shapes: Shapes = {}
        for name in ["gate", "up"] if self.is_gated else ["up"]:
            shapes |= linear_shapes(name, d_model, self.d_ff, bias=use_bias)
        return shapes | linear_shapes("down", self.d_ff, d_model, bias=use_bias)

    def num_active_params(self, d_model: int, *, use_bias: bool) -> int:
        """Parameters that one token uses: here all of them."""
        biases = (self.num_matrices - 1) * self.d_ff + d_model if use_bias else 0
        return self.num_matrices * d_model * self.d_ff + biases

    def flops_per_token(self, d_model: int) -> int:
        """Forward matmul FLOPs; a multiply-add is 2."""
        return 2 * self.num_matrices * d_model * self.d_ff


def default_d_ff(d_model: int, activation: str) -> int:
    """4 d_model, or 8/3 d_model for a gated MLP, whose third matrix then costs nothing extra.

    The 8/3 rule is from Shazeer 2020 (arXiv 2002.05202, section 2); the nearest multiple of 64
    keeps the matrices in whole vector registers and tiles.
    """
    if activation not in GATED_ACTIVATIONS:
        return 4 * d_model
    return max(64, round(8 * d_model / 3 / 64) * 64)
