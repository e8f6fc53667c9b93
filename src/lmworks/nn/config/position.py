"""How a model knows the order of its tokens, as data."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from lmworks.base.config import Config


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
