"""A machine as the few numbers that planning needs. No torch: who measures them passes them in."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "bf16"]

ELEMENT_BYTES: dict[Precision, int] = {"fp32": 4, "bf16": 2}
"""Size of a weight or activation; bf16 training keeps fp32 master weights beside it."""


@dataclass(frozen=True)
class Hardware:
    """Peak speed and memory of one machine."""

    name: str
    num_cores: int
    memory_bytes: int
    peak_flops_per_s: dict[Precision, float]
    """Matrix-multiply speed by number format: the 100 % of MFU."""
