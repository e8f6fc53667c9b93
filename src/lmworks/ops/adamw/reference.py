"""AdamW as the paper writes it, one tensor after the other (arXiv:1711.05101, algorithm 2)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def adamw_step_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    *,
    masters: Sequence[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    grad_scale: float,
) -> None:
    """See the public function; `masters[i] is params[i]` where a parameter needs no master."""
    step_size = lr / (1 - beta1**step)
    root_bias_correction2 = math.sqrt(1 - beta2**step)
    for param, grad, exp_avg, exp_avg_sq, master in zip(
        params, grads, exp_avgs, exp_avg_sqs, masters, strict=True
    ):
        scaled = grad.to(exp_avg.dtype) * grad_scale
        exp_avg.lerp_(scaled, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(scaled, scaled, value=1 - beta2)
        denominator = (exp_avg_sq.sqrt() / root_bias_correction2).add_(eps)
        master.mul_(1 - lr * weight_decay).addcdiv_(exp_avg, denominator, value=-step_size)
        if master is not param:
            param.copy_(master)
