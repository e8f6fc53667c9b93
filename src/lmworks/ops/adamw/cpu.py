"""AdamW in one pass over memory, all tensors shared out over torch's threads."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmworks.ops import native
from lmworks.ops.adamw import reference

DTYPES = frozenset({torch.float32, torch.bfloat16})


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
    """See the public function. Tensors that are not contiguous go through the reference."""
    native.load()
    tensors = list(zip(params, grads, exp_avgs, exp_avg_sqs, masters, strict=True))
    flat = [t for t in tensors if all(x.is_contiguous() for x in (t[0], t[2], t[3], t[4]))]
    strided = [t for t in tensors if not all(x.is_contiguous() for x in (t[0], t[2], t[3], t[4]))]
    scalars = (lr, beta1, beta2, eps, weight_decay, step, grad_scale)
    if flat:
        torch.ops.lmworks.adamw_step_(
            [t[0] for t in flat],
            [t[1].contiguous() for t in flat],
            [t[2] for t in flat],
            [t[3] for t in flat],
            [t[4] for t in flat],
            *scalars,
        )
    for param, grad, exp_avg, exp_avg_sq, master in strided:
        reference.adamw_step_(
            [param],
            [grad],
            [exp_avg],
            [exp_avg_sq],
            masters=[master],
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            step=step,
            grad_scale=grad_scale,
        )
