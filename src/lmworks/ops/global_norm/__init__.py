"""Euclidean norm over a list of tensors taken as one vector."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmworks.ops.dispatch import Kernel, Operator
from lmworks.ops.global_norm import cpu, reference

OPERATOR = Operator(
    "global_norm",
    schema="global_norm(Tensor[] tensors) -> float",
    reference=reference.global_norm,
    kernels={"cpu": Kernel(cpu.global_norm, device="cpu", dtypes=cpu.DTYPES)},
)


def global_norm(tensors: Sequence[Tensor]) -> float:
    """sqrt(sum of x^2 over all elements), right to about 1e-6; 0.0 for an empty list.

    The value does not depend on the number of threads. NaN or Inf anywhere gives NaN or Inf.
    """
    if not tensors:
        return 0.0
    is_double = any(tensor.dtype == torch.float64 for tensor in tensors)
    kernel = OPERATOR.pick(tensors[0].device, torch.float64 if is_double else tensors[0].dtype)
    return kernel(tensors)
