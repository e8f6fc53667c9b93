"""Learning-rate schedules: warm-up, then cosine, WSD, linear or constant.

    config = CosineSchedule(warmup_steps=100)
    lr = config.lr_at(step, total_steps, lr_peak)

Step s (from 0) of the warm-up uses lr_peak * (s + 1) / warmup_steps, so the first step moves and
step warmup_steps - 1 has the peak. The decay reaches its final value at step total_steps, one past
the last step, so that no step is wasted at a final value of 0.

Sources: cosine from SGDR (arXiv:1608.03983), WSD from MiniCPM (arXiv:2404.06395), the 1-sqrt decay
from Hägele et al. 2024 (arXiv:2405.18392). No torch here: `lmworks plan` draws schedules.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from lmworks.base.config import Config
from lmworks.base.errors import ConfigError


class Schedule(Config, ABC):
    """Interface of all schedules."""

    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up from 0 to the peak."""

    def lr_at(self, step: int, total_steps: int, lr_peak: float = 1.0) -> float:
        """Learning rate of step `step` (from 0) in a run of `total_steps` steps.

        With the default `lr_peak` this is the factor on the peak, in [0, 1].
        """
        if self.warmup_steps > total_steps:
            raise ConfigError(
                f"schedule.warmup_steps={self.warmup_steps} is more than the {total_steps} steps "
                "of the run"
            )
        if step < self.warmup_steps:
            return lr_peak * (step + 1) / self.warmup_steps
        return lr_peak * self._factor_after_warmup(min(step, total_steps), total_steps)

    @abstractmethod
    def _factor_after_warmup(self, step: int, total_steps: int) -> float:
        """Factor on the peak for warmup_steps <= step <= total_steps."""


class ConstantSchedule(Schedule):
    """Warm-up, then the peak until the end."""

    kind: Literal["constant"] = "constant"

    def _factor_after_warmup(self, step: int, total_steps: int) -> float:
        return 1.0


class LinearSchedule(Schedule):
    """Warm-up, then a straight line to `final_ratio`."""

    kind: Literal["linear"] = "linear"
    final_ratio: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""

    def _factor_after_warmup(self, step: int, total_steps: int) -> float:
        done = _progress(step, self.warmup_steps, total_steps)
        return 1.0 - (1.0 - self.final_ratio) * done


class CosineSchedule(Schedule):
    """Warm-up, then half a cosine wave to `final_ratio`."""

    kind: Literal["cosine"] = "cosine"
    final_ratio: float = Field(default=0.1, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""

    def _factor_after_warmup(self, step: int, total_steps: int) -> float:
        done = _progress(step, self.warmup_steps, total_steps)
        return self.final_ratio + (1.0 - self.final_ratio) * (0.5 + 0.5 * math.cos(math.pi * done))


class WSDSchedule(Schedule):
    """Warm-up, stable at the peak, decay over the last `decay_fraction` of the run."""

    kind: Literal["wsd"] = "wsd"
    decay_fraction: float = Field(default=0.2, ge=0, le=1)
    """Share of all steps, at the end, that decay."""
    decay_shape: Literal["linear", "sqrt"] = "sqrt"
    """linear: a straight line; sqrt: 1 - sqrt(share of the decay done)."""
    final_ratio: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""

    def _factor_after_warmup(self, step: int, total_steps: int) -> float:
        decay_start = total_steps - round(self.decay_fraction * total_steps)
        if decay_start < self.warmup_steps:
            raise ConfigError(
                f"schedule.warmup_steps={self.warmup_steps} and schedule.decay_fraction="
                f"{self.decay_fraction} overlap in a run of {total_steps} steps; the decay starts "
                f"at step {decay_start}"
            )
        if step <= decay_start:
            return 1.0
        done = _progress(step, decay_start, total_steps)
        left = 1.0 - (done if self.decay_shape == "linear" else math.sqrt(done))
        return self.final_ratio + (1.0 - self.final_ratio) * left


ScheduleConfig = Annotated[
    CosineSchedule | WSDSchedule | LinearSchedule | ConstantSchedule, Field(discriminator="kind")
]
"""Any schedule, chosen by `kind`."""


def _progress(step: int, start: int, end: int) -> float:
    """Share of [start, end] done at `step`; 1 for an empty interval."""
    return (step - start) / (end - start) if end > start else 1.0
