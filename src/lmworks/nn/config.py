"""What each layer needs to know to be built: plain data, no torch.

Every class here is a section of `lmworks.models.config.ModelConfig`. Sizes that follow from the
model's width (`head_dim`, `d_ff`) may be left out there; here they are always numbers.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from lmworks.base.config import Config

NormKind = Literal["rmsnorm", "layernorm"]
PlainActivation = Literal["relu", "gelu", "gelu_tanh", "silu", "relu2"]
GatedActivation = Literal["glu", "bilinear", "reglu", "geglu", "geglu_tanh", "swiglu"]
Activation = Literal[PlainActivation, GatedActivation]
GATED_ACTIVATIONS: frozenset[str] = frozenset(
    {"glu", "bilinear", "reglu", "geglu", "geglu_tanh", "swiglu"}
)

NonNegativeFloat = Annotated[float, Field(ge=0)]


class NormConfig(Config):
    """Normalisation of the residual stream."""

    kind: NormKind = "rmsnorm"
    """rmsnorm (Zhang & Sennrich 2019) or layernorm (Ba et al. 2016)."""
    eps: PositiveFloat = 1e-5
    """Added to the mean square (or variance) under the root."""


class MLPConfig(Config):
    """The feed-forward half of a block."""

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


class AttentionConfig(Config):
    """Multi-head, multi-query and grouped-query attention, told apart by `num_kv_heads`."""

    kind: Literal["gqa"] = "gqa"
    num_heads: PositiveInt
    """Query heads."""
    num_kv_heads: PositiveInt
    """Key and value heads: num_heads is MHA (the value when left out), 1 is MQA, between is GQA."""
    head_dim: PositiveInt
    """Size of one head. Left out in a model config: d_model / num_heads."""
    qk_norm: bool = False
    """Normalise each query and key head before the rotation, with the model's kind of norm."""
    logit_softcap: NonNegativeFloat = 0.0
    """Bound scores softly to (-c, c) by c * tanh(score / c), as Gemma 2; 0 leaves them alone."""

    @model_validator(mode="before")
    @classmethod
    def _one_kv_head_per_query_head(cls, values: Any) -> Any:
        if isinstance(values, dict) and "num_kv_heads" not in values:
            return {**values, "num_kv_heads": values.get("num_heads", 1)}
        return values

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> "AttentionConfig":
        if self.num_heads % self.num_kv_heads:
            divisors = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
            nearest = min(divisors, key=lambda n: abs(n - self.num_kv_heads))
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of "
                f"num_kv_heads={self.num_kv_heads}; nearest num_kv_heads: {nearest}"
            )
        return self

    @property
    def d_query(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def d_kv(self) -> int:
        """Width of all key heads together (and of all value heads)."""
        return self.num_kv_heads * self.head_dim


class RopeConfig(Config):
    """Rotary positions (Su et al. 2021, arXiv 2104.09864): queries and keys are turned."""

    kind: Literal["rope"] = "rope"
    theta: PositiveFloat = 10000.0
    """Base of the wavelengths 2 pi theta^(2i / head_dim), in tokens."""


class LearnedConfig(Config):
    """A trained vector per position, added to the token embedding (GPT-2)."""

    kind: Literal["learned"] = "learned"


class SinusoidalConfig(Config):
    """Fixed sines and cosines added to the scaled token embedding (Vaswani et al. 2017, 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"


class NoPositionConfig(Config):
    """No position signal but the causal mask (NoPE, Kazemnejad et al. 2023)."""

    kind: Literal["none"] = "none"


PositionConfig = Annotated[
    RopeConfig | LearnedConfig | SinusoidalConfig | NoPositionConfig, Field(discriminator="kind")
]


def default_d_ff(d_model: int, activation: str) -> int:
    """4 d_model, or 8/3 d_model for a gated MLP, whose third matrix then costs nothing extra.

    The 8/3 rule is from Shazeer 2020 (arXiv 2002.05202, section 2); the nearest multiple of 64
    keeps the matrices in whole vector registers and tiles.
    """
    if activation not in GATED_ACTIVATIONS:
        return 4 * d_model
    return max(64, round(8 * d_model / 3 / 64) * 64)
