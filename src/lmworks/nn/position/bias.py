"""Positions as a number added to each score of attention: ALiBi and T5's relative bias.

Both depend on the distance from query to key only. Keys after the query are masked by attention;
their bias is that of distance 0. What is the same for all sequences has a batch dim of 1: torch's
fused kernels take a bias of four dims only.
Shapes: B batch or 1, T queries, S keys (cached ones first), H query heads, N buckets.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmworks.nn.config import AlibiConfig, T5Config
from lmworks.nn.tables import FixedTables


class AlibiBias(FixedTables):
    """-slope_h * distance (Press et al. 2021, arXiv 2108.12409, section 3)."""

    slope_H11: Tensor

    def __init__(self, config: AlibiConfig, *, num_heads: int) -> None:
        super().__init__()
        self.slopes = config.slopes(num_heads)
        self.build_tables(torch.get_default_device())

    def make_tables(self, device: torch.device) -> dict[str, Tensor]:
        """The slope of each head, with dims for queries and keys."""
        return {"slope_H11": torch.tensor(self.slopes, device=device).view(-1, 1, 1)}

    def forward(
        self, query: Int[Tensor, "*batch T"], key: Int[Tensor, "*batch S"]
    ) -> Float[Tensor, "B H T S"]:
        """The bias between tokens at these positions; fp32."""
        return -self.slope_H11 * distances(query, key).unsqueeze(1)


class T5Bias(nn.Module):
    """weight[bucket(distance), h] (Raffel et al. 2019, arXiv 1910.10683, section 2.1)."""

    def __init__(self, config: T5Config, *, num_heads: int) -> None:
        super().__init__()
        self.max_distance = config.max_distance
        self.weight = nn.Parameter(torch.empty(config.num_buckets, num_heads))

    def forward(
        self, query: Int[Tensor, "*batch T"], key: Int[Tensor, "*batch S"]
    ) -> Float[Tensor, "B H T S"]:
        """The bias between tokens at these positions, to be shared by all layers."""
        num_buckets = self.weight.shape[0]
        bucket = distance_buckets(
            distances(query, key), num_buckets=num_buckets, max_distance=self.max_distance
        )
        return nn.functional.embedding(bucket, self.weight).movedim(-1, 1)


def distances(query: Int[Tensor, "*batch T"], key: Int[Tensor, "*batch S"]) -> Int[Tensor, "B T S"]:
    """How many tokens each key is before each query; 0 for those after it."""
    distance = (query.unsqueeze(-1) - key.unsqueeze(-2)).clamp(min=0)
    return distance if distance.ndim == 3 else distance.unsqueeze(0)


def distance_buckets(
    distance: Int[Tensor, "..."], *, num_buckets: int, max_distance: int
) -> Int[Tensor, "..."]:
    """T5's causal buckets: one per distance for the first half, then logarithmic ranges."""
    num_exact = num_buckets // 2
    # In fp32 and in this order, as T5's code has it: a rounding decides at the edges of ranges.
    log_ratio = torch.log(distance.clamp(min=1).float() / num_exact)
    range_index = log_ratio / math.log(max_distance / num_exact) * (num_buckets - num_exact)
    far = (num_exact + range_index.long()).clamp(max=num_buckets - 1)
    return torch.where(distance < num_exact, distance, far)
