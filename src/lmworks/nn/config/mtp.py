"""Multi-token prediction as data: further heads that look more than one token ahead.

They are trained beside the model and share its embedding and output head; without `Decoder.draft`
nothing at inference touches them. Depth k predicts the token k + 1 places ahead; the model itself
is depth 0.
"""

from typing import Annotated, Literal

from pydantic import Field

from lmworks.base.config import Config
from lmworks.nn.config.norm import NormConfig
from lmworks.nn.config.number import NonNegativeFloat
from lmworks.nn.config.shapes import Shapes, linear_shapes, prefixed

MTPDepth = Annotated[int, Field(gt=0, le=32)]
"""Far above the published ones (1 to 7): a forged config must not ask for all memory."""


class NoMTP(Config):
    """The model predicts the next token only."""

    kind: Literal["none"] = "none"

    @property
    def depth(self) -> int:
        """No further tokens."""
        return 0

    @property
    def loss_weight(self) -> float:
        """No further losses."""
        return 0.0

    def weight_shapes(
        self,
        d_model: int,
        block: Shapes,
        *,
        norm: NormConfig,
        has_final_norm: bool,
        use_bias: bool,
    ) -> Shapes:
        """Of no weights."""
        return {}

    def projection_flops_per_token(self, d_model: int) -> int:
        """Nothing is projected."""
        return 0


class SequentialMTP(Config):
    """Modules in a chain, each one token further (DeepSeek-V3, arXiv 2412.19437, section 2.2).

    h_k = block(proj [norm(h_(k-1)); norm(embed(token i + k))]), of which the head predicts token
    i + k + 1. The block is one like the model's last layer.
    """

    kind: Literal["sequential"] = "sequential"
    depth: MTPDepth = 1
    """Modules: tokens predicted beyond the next one."""
    loss_weight: NonNegativeFloat = 0.3
    """Weight of the mean of their losses (DeepSeek-V3: 0.3, then 0.1)."""

    def weight_shapes(
        self,
        d_model: int,
        block: Shapes,
        *,
        norm: NormConfig,
        has_final_norm: bool,
        use_bias: bool,
    ) -> Shapes:
        """Of all modules; `block` are the shapes of one block."""
        module: Shapes = norm.weight_shapes("hidden_norm", d_model, use_bias=use_bias)
        module |= norm.weight_shapes("embed_norm", d_model, use_bias=use_bias)
        module |= linear_shapes("proj", 2 * d_model, d_model, bias=use_bias)
        module |= prefixed("block", block)
        if has_final_norm:
            module |= norm.weight_shapes("norm", d_model, use_bias=use_bias)
        return _repeated(module, self.depth)

    def projection_flops_per_token(self, d_model: int) -> int:
        """Of `proj` in one module; a multiply-add is 2."""
        return 2 * (2 * d_model) * d_model


class ParallelMTP(Config):
    """Independent heads on one trunk (Gloeckle et al. 2024, arXiv 2404.19737, section 2).

    The trunk is what the model's last layer reads, which is itself the head for the next token;
    each further head is one more such layer. The final norm and the output matrix are shared.
    """

    kind: Literal["parallel"] = "parallel"
    depth: MTPDepth = 3
    """Heads beside the one for the next token (the paper's n is one more; best was n = 4)."""
    loss_weight: NonNegativeFloat = 1.0
    """Weight of the mean of their losses; `depth` gives the paper's plain sum."""

    def weight_shapes(
        self,
        d_model: int,
        block: Shapes,
        *,
        norm: NormConfig,
        has_final_norm: bool,
        use_bias: bool,
    ) -> Shapes:
        """Of all heads; `block` are the shapes of one block."""
        return _repeated(prefixed("block", block), self.depth)

    def projection_flops_per_token(self, d_model: int) -> int:
        """A head is a block and nothing else."""
        return 0


MTPConfig = Annotated[NoMTP | SequentialMTP | ParallelMTP, Field(discriminator="kind")]
"""Any multi-token prediction, chosen by `kind`."""


def _repeated(module: Shapes, times: int) -> Shapes:
    shapes: Shapes = {}
    for index in range(times):
        shapes |= prefixed(f"mtp.{index}", module)
    return shapes
