"""How a run uses this machine: number format, and the peak that MFU refers to.

What `configure` chooses goes into the run's resolved recipe, so a resumed run keeps the exact
arithmetic it started with.
"""

import time
from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]

PROBE_SHAPE = (4096, 512, 1344)
"""Rows, inner dim and columns of the probe: tokens through the MLP of a small model. Square
matrices reach about half of this speed where the CPU has matrix units."""
PROBE_S = 0.025
"""Time per number format, at least."""
MIN_BF16_SPEEDUP = 1.3
"""bf16 adds casts and rounding; below this gain over fp32 it does not pay."""


@dataclass(frozen=True)
class Acceleration:
    """The way this run uses the machine."""

    precision: Precision
    peak_flops_per_s: float
    """Measured matrix-multiply speed in `precision`, all threads: the 100 % of MFU."""
    notes: tuple[str, ...]
    """One line per choice, for the user."""


def configure(wanted: Literal["auto", "fp32", "bf16"]) -> Acceleration:
    """Choose the precision; measures the machine's matrix-multiply speed (about 100 ms)."""
    speeds: dict[Precision, float] = {
        "fp32": gemm_flops_per_s(torch.float32),
        "bf16": gemm_flops_per_s(torch.bfloat16),
    }
    ratio = speeds["bf16"] / speeds["fp32"]
    precision: Precision
    if wanted == "auto":
        precision = "bf16" if ratio >= MIN_BF16_SPEEDUP else "fp32"
        why = f"bf16 matrix multiply is {ratio:.1f} times as fast as fp32 here"
    else:
        precision, why = wanted, "as the recipe says"
    peak = speeds[precision]
    notes = (
        f"precision {precision}: {why}",
        f"matrix-multiply peak {peak / 1e9:.0f} GFLOP/s on {torch.get_num_threads()} threads",
    )
    return Acceleration(precision, peak, notes)


def gemm_flops_per_s(dtype: torch.dtype, *, budget_s: float = PROBE_S) -> float:
    """Best speed of `torch.mm` in `dtype` within `budget_s` (at least three repeats)."""
    rows, inner, columns = PROBE_SHAPE
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(columns, inner, dtype=dtype)
    out = torch.mm(left, right.T)
    best_s, spent_s, repeats = float("inf"), 0.0, 0
    while repeats < 3 or spent_s < budget_s:
        start = time.perf_counter()
        torch.mm(left, right.T, out=out)
        took_s = time.perf_counter() - start
        best_s, spent_s, repeats = min(best_s, took_s), spent_s + took_s, repeats + 1
    return 2 * rows * inner * columns / best_s
