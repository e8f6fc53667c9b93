"""From pairs of token and expert to rows sorted by expert, and who is dropped where one is full.

Everything has the same shape whatever was chosen, so that a compiler sees no data-dependent sizes:
dropped pairs are sorted to the end, after the rows of the last expert.
Shapes: S pairs, E experts.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Dispatch(NamedTuple):
    """Pairs in the order of their experts."""

    order_S: Int[Tensor, " S"]
    """Number of the pair in each row."""
    ends_E: Int[Tensor, " E"]
    """Where the rows of each expert end; after the last of them come the dropped pairs."""
    chosen_E: Int[Tensor, " E"]
    """Pairs of each expert before any was dropped."""


def dispatch(
    expert_S: Int[Tensor, " S"],
    weight_S: Float[Tensor, " S"],
    *,
    num_experts: int,
    capacity: int | None,
    drop: str,
) -> Dispatch:
    """Sort by expert; of an expert with more than `capacity` pairs the worst are dropped.

    `drop` says which: "score" those with the lowest weights (the later of equal ones), "position"
    those latest in the batch.
    """
    chosen_E = counts(expert_S, num_experts)
    if capacity is None:
        return Dispatch(expert_S.argsort(stable=True), chosen_E.cumsum(0), chosen_E)
    merit_S = weight_S if drop == "score" else torch.zeros_like(weight_S)
    order_S, rank_S = ranked(expert_S, merit_S, num_experts)
    row_expert_S = torch.where(rank_S < capacity, expert_S[order_S], num_experts)
    order_S = order_S[row_expert_S.argsort(stable=True)]
    return Dispatch(order_S, chosen_E.clamp(max=capacity).cumsum(0), chosen_E)


def counts(index_S: Int[Tensor, " S"], size: int) -> Int[Tensor, " size"]:
    """How often each of 0 .. size - 1 occurs."""
    zeros = torch.zeros(size, dtype=torch.int64, device=index_S.device)
    return zeros.index_add(0, index_S, torch.ones_like(index_S))


def ranked(
    expert_S: Int[Tensor, " S"], merit_S: Float[Tensor, " S"], num_experts: int
) -> tuple[Int[Tensor, " S"], Int[Tensor, " S"]]:
    """Pairs by expert and, within each, by falling merit (of equal ones the earlier first), and the
    rank of each within its expert, from 0."""
    by_merit_S = merit_S.argsort(descending=True, stable=True)
    order_S = by_merit_S[expert_S[by_merit_S].argsort(stable=True)]
    counts_E = counts(expert_S, num_experts)
    starts_E = counts_E.cumsum(0) - counts_E
    index_S = torch.arange(len(expert_S), device=expert_S.device)
    return order_S, index_S - starts_E[expert_S[order_S]]
