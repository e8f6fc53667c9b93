"""How rotary positions reach past the context that they were trained on, as data.

A pair of elements i of a head of D turned elements rotates by `position * frequency_i`, where plain
RoPE has frequency_i = theta^(-2i / D). Each kind here is another list of frequencies, computed in
fp64 without torch; YaRN also scales the rotated vectors. Pairs turn once in 2 pi / frequency
tokens, their wavelength: short ones tell neighbours apart, long ones tell far from farther.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from lmworks.base.config import Config
from lmworks.nn.config.number import NonNegativeFloat, TokenCount

Factor = Annotated[float, Field(ge=1, le=1e9)]
"""How many times longer than in training the context is to be."""
Turns = Annotated[float, Field(ge=1e-3, le=1e6)]
"""Turns of a pair within the trained context."""


def plain_frequencies(theta: float, rotary_dim: int) -> list[float]:
    """theta^(-2i / D) for the pairs i (Su et al. 2021, arXiv 2104.09864, equation 15)."""
    return [theta ** (-2 * pair / rotary_dim) for pair in range(rotary_dim // 2)]


class NoScalingConfig(Config):
    """The frequencies of training."""

    kind: Literal["none"] = "none"

    @property
    def rotation_scale(self) -> float:
        """Factor of turned queries and keys."""
        return 1.0

    def frequencies(self, theta: float, rotary_dim: int) -> list[float]:
        """Radians per token of each pair."""
        return plain_frequencies(theta, rotary_dim)


class LinearScalingConfig(Config):
    """Position interpolation (Chen et al. 2023, arXiv 2306.15595): all positions / factor."""

    kind: Literal["linear"] = "linear"
    factor: Factor

    @property
    def rotation_scale(self) -> float:
        """Factor of turned queries and keys."""
        return 1.0

    def frequencies(self, theta: float, rotary_dim: int) -> list[float]:
        """Radians per token of each pair."""
        return [f / self.factor for f in plain_frequencies(theta, rotary_dim)]


class NtkScalingConfig(Config):
    """NTK-aware scaling: a larger theta, so that the slowest pair is interpolated by `factor` and
    the fastest not at all (bloc97 2023; Peng et al. 2023, arXiv 2309.00071, definition 1)."""

    kind: Literal["ntk"] = "ntk"
    factor: Factor

    @property
    def rotation_scale(self) -> float:
        """Factor of turned queries and keys."""
        return 1.0

    def frequencies(self, theta: float, rotary_dim: int) -> list[float]:
        """Radians per token of each pair."""
        if rotary_dim == 2:  # one pair, which is the fastest: its frequency is 1 whatever theta is
            return plain_frequencies(theta, rotary_dim)
        stretched = theta * self.factor ** (rotary_dim / (rotary_dim - 2))
        return plain_frequencies(stretched, rotary_dim)


class YarnScalingConfig(Config):
    """YaRN (Peng et al. 2023, arXiv 2309.00071, section 3): pairs that turn often in the trained
    context keep their frequency, those that hardly turn are interpolated, between is a ramp."""

    kind: Literal["yarn"] = "yarn"
    factor: Factor
    original_max_seq_len: TokenCount
    """Context of training before the extension, in tokens."""
    beta_fast: Turns = 32.0
    """Pairs with at least so many turns in the trained context keep their frequency."""
    beta_slow: Turns = 1.0
    """Pairs with at most so many are divided by `factor`."""
    attention_factor: NonNegativeFloat = 0.0
    """Factor of turned queries and keys; 0 is the paper's 0.1 ln(factor) + 1. DeepSeek has 1 here
    and scales all scores instead: by `yarn_mscale` squared, in attention.scale."""
    truncate: bool = True
    """Round the ends of the ramp outwards to whole pairs; gpt-oss does not."""

    @property
    def rotation_scale(self) -> float:
        """Factor of turned queries and keys (equation 22: sqrt(1 / t))."""
        return self.attention_factor or yarn_mscale(self.factor)

    def frequencies(self, theta: float, rotary_dim: int) -> list[float]:
        """Radians per token of each pair."""
        low, high = self._ramp(theta, rotary_dim)
        scaled = []
        for pair, frequency in enumerate(plain_frequencies(theta, rotary_dim)):
            interpolated = min(max((pair - low) / (high - low), 0.0), 1.0)
            scaled.append(frequency * (1 - interpolated + interpolated / self.factor))
        return scaled

    def _ramp(self, theta: float, rotary_dim: int) -> tuple[float, float]:
        """The last pair that is kept and the first that is interpolated in full."""

        def pair_with(turns: float) -> float:
            wavelength = self.original_max_seq_len / turns
            return rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

        low, high = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.truncate:
            low, high = float(math.floor(low)), float(math.ceil(high))
        low, high = max(low, 0.0), min(high, rotary_dim - 1.0)
        # As the authors' code: a ramp of no width must not divide by zero.
        return low, high + 0.001 if low == high else high

    @model_validator(mode="after")
    def _fast_is_faster(self) -> "YarnScalingConfig":
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"beta_fast={self.beta_fast} turns must be more than beta_slow={self.beta_slow}"
            )
        return self


class Llama3ScalingConfig(Config):
    """Llama 3.1's (Llama team 2024, arXiv 2407.21783, 3.4; formula from its reference code): long
    wavelengths are divided by `factor`, short ones kept, between 1 / wavelength decides."""

    kind: Literal["llama3"] = "llama3"
    factor: Factor = 8.0
    low_freq_factor: PositiveFloat = 1.0
    """Pairs with fewer turns than this in the trained context are divided by `factor`."""
    high_freq_factor: PositiveFloat = 4.0
    """Pairs with more turns than this keep their frequency."""
    original_max_seq_len: TokenCount = 8192
    """Context of training before the extension, in tokens."""

    @property
    def rotation_scale(self) -> float:
        """Factor of turned queries and keys."""
        return 1.0

    def frequencies(self, theta: float, rotary_dim: int) -> list[float]:
        """Radians per token of each pair."""
        scaled = []
        for frequency in plain_frequencies(theta, rotary_dim):
            turns = self.original_max_seq_len * frequency / (2 * math.pi)
            kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            kept = min(max(kept, 0.0), 1.0)
            scaled.append(frequency * (kept + (1 - kept) / self.factor))
        return scaled

    @model_validator(mode="after")
    def _high_is_higher(self) -> "Llama3ScalingConfig":
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor={self.high_freq_factor} must be more than "
                f"low_freq_factor={self.low_freq_factor}"
            )
        return self


RopeScalingConfig = Annotated[
    NoScalingConfig
    | LinearScalingConfig
    | NtkScalingConfig
    | YarnScalingConfig
    | Llama3ScalingConfig,
    Field(discriminator="kind"),
]


def yarn_mscale(factor: float, weight: float = 1.0) -> float:
    """0.1 weight ln(factor) + 1: by how much YaRN enlarges queries and keys (equation 22).

    `weight` is what DeepSeek's configs call mscale and mscale_all_dim.
    """
    return 0.1 * weight * math.log(factor) + 1.0
