"""How a model knows the order of its tokens, as data."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from lmworks.base.config import Config
from lmworks.nn.config.number import TokenCount
from lmworks.nn.config.rope_scaling import NoScalingConfig, RopeScalingConfig
from lmworks.nn.config.shapes import Shapes

Pairing = Literal["half", "interleaved"]


class RopeConfig(Config):
    """Rotary positions (Su et al. 2021, arXiv 2104.09864): queries and keys are turned."""

    kind: Literal["rope"] = "rope"
    theta: Annotated[float, Field(gt=1, le=1e15)] = 10000.0
    """Base of the wavelengths 2 pi theta^(2i / rotary_dim), in tokens."""
    pairing: Pairing = "half"
    """half: element i turns with i + rotary_dim / 2 (Llama, Qwen); interleaved: 2i with 2i + 1
    (the paper, GPT-J, DeepSeek). Equal but for the order of the rows of q and k."""
    rotary_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of each head that turns, its first elements; the rest knows no position (GPT-NeoX)."""
    scaling: RopeScalingConfig = NoScalingConfig()

    def rotary_dim(self, head_dim: int) -> int:
        """Elements of each head that turn."""
        return round(self.rotary_fraction * head_dim)

    def frequencies(self, head_dim: int) -> list[float]:
        """Radians per token of each pair."""
        return self.scaling.frequencies(self.theta, self.rotary_dim(head_dim))


class LearnedConfig(Config):
    """A trained vector per position, added to the token embedding (GPT-2)."""

    kind: Literal["learned"] = "learned"


class SinusoidalConfig(Config):
    """Fixed sines and cosines added to the scaled token embedding (Vaswani et al. 2017, 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"


class AlibiConfig(Config):
    """Attention scores fall linearly with distance, in each head by its own slope (Press et al.
    2021, arXiv 2108.12409)."""

    kind: Literal["alibi"] = "alibi"
    max_bias: PositiveFloat = 8.0
    """The last of n = 2^k heads has slope 2^-max_bias, head h = 1..n has 2^(-max_bias h / n)."""

    def slopes(self, num_heads: int) -> list[float]:
        """Of each head; between powers of two, every other slope of the next one fills up."""
        below = 1 << (num_heads.bit_length() - 1)
        slopes = [2 ** (-self.max_bias * (head + 1) / below) for head in range(below)]
        between = [2 ** (-self.max_bias * (head + 0.5) / below) for head in range(below)]
        return (slopes + between)[:num_heads]


class T5Config(Config):
    """A learned number per head and bucket of distances, added to the scores, one table for all
    layers (Raffel et al. 2019, arXiv 1910.10683, section 2.1). T5 has attention.scale 1."""

    kind: Literal["t5"] = "t5"
    num_buckets: Annotated[int, Field(ge=2)] = 32
    """Half for distances 0, 1, 2..., half for ranges that widen logarithmically."""
    max_distance: TokenCount = 128
    """From this distance on, in tokens, all share the last bucket."""

    @model_validator(mode="after")
    def _there_is_room_for_ranges(self) -> "T5Config":
        if self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"max_distance={self.max_distance} must be more than the num_buckets / 2 = "
                f"{self.num_buckets // 2} buckets of one distance"
            )
        return self

    def weight_shapes(self, num_heads: int) -> Shapes:
        """Of the one table."""
        return {"weight": (self.num_buckets, num_heads)}


class NoPositionConfig(Config):
    """No position signal but the causal mask (NoPE, Kazemnejad et al. 2023)."""

    kind: Literal["none"] = "none"


PositionConfig = Annotated[
    RopeConfig | LearnedConfig | SinusoidalConfig | AlibiConfig | T5Config | NoPositionConfig,
    Field(discriminator="kind"),
]
