"""Square root of the sum of all squares, accumulated in float64."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def global_norm(tensors: Sequence[Tensor]) -> float:
    """See the public function."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
