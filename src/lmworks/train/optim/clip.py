"""Gradient clipping by the norm over all parameters together.

Clipping is folded into the optimizer's `grad_scale`, so that gradients are never rewritten:

    norm = global_grad_norm(model.parameters()) * token_scale
    optimizer.step(lr=lr, grad_scale=token_scale * clip_scale(norm, max_norm=1.0))
"""

import math
from collections.abc import Iterable

from torch import Tensor

from lmworks.ops.global_norm import global_norm


def global_grad_norm(params: Iterable[Tensor]) -> float:
    """Euclidean norm of all gradients as one vector; NaN or Inf if any element is."""
    return global_norm([p.grad for p in params if p.grad is not None])


def clip_scale(norm: float, max_norm: float) -> float:
    """Factor that brings `norm` down to `max_norm`, never above 1.

    Raises:
        ValueError: the norm is NaN or Inf (the caller should have stopped), or max_norm is not > 0.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm={max_norm} must be above 0 (inf: no clipping)")
    if not math.isfinite(norm):
        raise ValueError(f"gradient norm is {norm}; a step with it would destroy the weights")
    return min(1.0, max_norm / norm) if norm > 0 else 1.0
