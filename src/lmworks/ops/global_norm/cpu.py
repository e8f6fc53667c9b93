"""Global norm in one native pass; partial sums are added in a fixed order."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lmworks.ops import native

DTYPES = frozenset({torch.float32, torch.bfloat16})


@torch.no_grad()
def global_norm(tensors: Sequence[Tensor]) -> float:
    """See the public function."""
    native.load()
    flat = [tensor.contiguous() for tensor in tensors]
    return math.sqrt(torch.ops.lmworks.sum_of_squares(flat))
