"""One AdamW step over many tensors, in place.

Source: Decoupled Weight Decay Regularization (Loshchilov and Hutter 2019, arXiv:1711.05101).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmworks.ops.adamw import cpu, reference
from lmworks.ops.dispatch import Kernel, Operator

OPERATOR = Operator(
    "adamw_step_",
    schema=(
        "adamw_step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
        "Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] masters, float lr, float beta1, float beta2, "
        "float eps, float weight_decay, int step, float grad_scale) -> ()"
    ),
    reference=reference.adamw_step_,
    kernels={"cpu": Kernel(cpu.adamw_step_, device="cpu", dtypes=cpu.DTYPES)},
)


def adamw_step_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    *,
    masters: Sequence[Tensor | None] | None = None,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    grad_scale: float = 1.0,
) -> None:
    """Update parameters and moments in place.

    Args:
        masters: float32 copy of each bfloat16 parameter (None where the parameter is its own
            master). The step updates the master and writes its rounded value to the parameter.
        step: number of this step, from 1 (bias correction).
        grad_scale: every gradient is read as `grad_scale * grad`; gradients are not changed.

    Raises:
        ValueError: lists of different length, shapes that differ, a bfloat16 parameter without
            master, or `step` below 1.
    """
    resolved = _resolve_masters(params, masters)
    _check(params, grads, exp_avgs, exp_avg_sqs, resolved, step=step)
    if not params:
        return
    is_double = any(param.dtype == torch.float64 for param in params)
    kernel = OPERATOR.pick(params[0].device, torch.float64 if is_double else params[0].dtype)
    kernel(
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        masters=resolved,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
        step=step,
        grad_scale=grad_scale,
    )


def _resolve_masters(
    params: Sequence[Tensor], masters: Sequence[Tensor | None] | None
) -> list[Tensor]:
    if masters is None:
        return list(params)
    if len(masters) != len(params):
        raise ValueError(
            f"{len(masters)} masters for {len(params)} params; give one (or None) each"
        )
    return [p if m is None else m for p, m in zip(params, masters, strict=True)]


def _check(*lists: Sequence[Tensor], step: int) -> None:
    """`lists` are params, grads, exp_avgs, exp_avg_sqs, masters."""
    if step < 1:
        raise ValueError(f"step={step}: steps count from 1")
    lengths = [len(tensors) for tensors in lists]
    if len(set(lengths)) != 1:
        raise ValueError(f"lengths of params, grads, exp_avgs, exp_avg_sqs differ: {lengths[:4]}")
    for i, tensors in enumerate(zip(*lists, strict=True)):
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if len(set(shapes)) != 1:
            raise ValueError(
                f"tensor {i}: param, grad, exp_avg, exp_avg_sq, master must share one shape, "
                f"got {shapes}"
            )
        if tensors[-1].dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"tensor {i} is {tensors[0].dtype} without a float32 master; pass masters="
            )
