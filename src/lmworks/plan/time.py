"""Time that training takes: FLOPs over the speed reached."""

TOKENS_PER_PARAM = 20
"""Compute-optimal tokens per parameter (Hoffmann et al. 2022, Chinchilla, arXiv 2203.15556)."""


def training_time_s(
    *, num_tokens: int, flops_per_token: int, peak_flops_per_s: float, mfu: float
) -> float:
    """Seconds for `num_tokens` tokens at `mfu` (0 to 1) of the machine's matrix-multiply peak."""
    return num_tokens * flops_per_token / (peak_flops_per_s * mfu)


def readable_time(seconds: float) -> str:
    """Seconds in the two units that fit: 42 s, 3 min 20 s, 5 h 07 min, 12 d 3 h, 1,200 years."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    if days < 1000:
        return f"{days} d {hours} h"
    return f"{days / 365.25:,.1f} years"
