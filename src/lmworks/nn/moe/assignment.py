"""Balanced assignment: in training one expert per token, such that all get their even share.

Scores are evened out over the tokens at hand before the best expert is taken. `sinkhorn`: by a
transport plan (S-BASE, Clark et al. 2022, "Unified Scaling Laws for Routed Language Models", arXiv
2202.01169, appendix B.2.1). `auction`: by prices that full experts raise (BASE, Lewis et al. 2021,
2103.16716, section 3.1; Bertsekas 1992, "Auction algorithms for network flow problems"). Outside
training a token takes its best expert, whatever the others do, so that it does not depend on them.
Shapes: N tokens, C channels, E experts.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmworks.nn.config import AuctionRouterConfig, SinkhornRouterConfig
from lmworks.nn.moe.choice import Choice, exact_linear, pairs
from lmworks.nn.moe.dispatch import ranked


class BalancedRouter(nn.Module):
    """The weight of an expert is its score for the token, however the expert was assigned."""

    def __init__(
        self,
        config: SinkhornRouterConfig | AuctionRouterConfig,
        *,
        d_model: int,
        num_experts: int,
    ) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(num_experts, d_model))

    def forward(self, x_NC: Float[Tensor, "N C"]) -> Choice:
        """Assign, then weigh."""
        logits_NE = exact_linear(x_NC, self.weight)
        probs_NE = logits_NE.softmax(dim=-1)
        expert_N1 = self._assign(logits_NE.detach()).unsqueeze(1)
        scores_NE = probs_NE if self.config.score == "softmax" else logits_NE.sigmoid()
        return pairs(expert_N1, scores_NE.gather(1, expert_N1), logits_NE, probs_NE)

    def _assign(self, logits_NE: Tensor) -> Int[Tensor, " N"]:
        if not self.training:
            return logits_NE.argmax(dim=-1)
        if self.config.kind == "auction":
            return _AUCTION(logits_NE, self.config.tolerance)
        return sinkhorn(logits_NE, self.config.iterations).argmax(dim=-1)


def sinkhorn(logits_NE: Float[Tensor, "N E"], iterations: int) -> Float[Tensor, "N E"]:
    """Log of the plan nearest to softmax(logits) that gives every expert the same mass.

    Rows and columns are normalised in turn, rows last, so that they sum to 1 exactly.
    """
    num_tokens, num_experts = logits_NE.shape
    log_share = math.log(num_tokens / num_experts)
    plan_NE = logits_NE
    for _ in range(iterations):
        plan_NE = plan_NE - plan_NE.logsumexp(dim=0, keepdim=True) + log_share
        plan_NE = plan_NE - plan_NE.logsumexp(dim=1, keepdim=True)
    return plan_NE


def auction(scores_NE: Float[Tensor, "N E"], *, tolerance: float) -> Int[Tensor, " N"]:
    """An expert for each token, none with more than ceil(N / E), of nearly the highest total score.

    Tokens without an expert bid for the one that is worth most to them after its price: as much as
    makes the next best one as good, and a little more, `tolerance` times the range of the scores.
    An expert keeps its highest bids; when full, its price is the lowest of them. The mean score of
    the result is at most that little more below the optimum (Bertsekas, section 2). Not finite
    scores count as 0 or as the largest number.
    """
    scores_NE = scores_NE.double().nan_to_num()
    num_tokens, num_experts = scores_NE.shape
    expert_N = torch.zeros(num_tokens, dtype=torch.int64, device=scores_NE.device)
    if num_experts == 1 or not num_tokens:
        return expert_N
    capacity = math.ceil(num_tokens / num_experts)
    scores_NE = scores_NE - scores_NE.min()
    scores_NE = scores_NE / scores_NE.max().clamp(min=torch.finfo(torch.float64).tiny)
    price_E = torch.zeros(num_experts, dtype=torch.float64, device=scores_NE.device)
    expert_N -= 1
    bid_N = torch.zeros(num_tokens, dtype=torch.float64, device=scores_NE.device)
    while len(waiting := (expert_N < 0).nonzero().squeeze(1)):
        gains_UE = scores_NE[waiting] - price_E
        best, second = gains_UE.topk(2, dim=-1).values.unbind(-1)
        wanted_U = gains_UE.argmax(dim=-1)
        expert_N[waiting] = wanted_U
        bid_N[waiting] = price_E[wanted_U] + best - second + tolerance
        order_N, rank_N = ranked(expert_N, bid_N, num_experts)
        last = order_N[rank_N == capacity - 1]
        price_E[expert_N[last]] = bid_N[last]
        expert_N[order_N[rank_N >= capacity]] = -1
    return expert_N


def _auction_by_position(scores_NE: Tensor, tolerance: float) -> Tensor:
    return auction(scores_NE, tolerance=tolerance)


# One operator to compilers: how many rounds it takes depends on the scores.
_AUCTION = torch.library.custom_op(
    "lmworks::auction",
    _auction_by_position,
    mutates_args=(),
    schema="(Tensor scores_NE, float tolerance) -> Tensor",
)


@_AUCTION.register_fake
def _auction_fake(scores_NE: Tensor, tolerance: float) -> Tensor:
    return scores_NE.new_empty(scores_NE.shape[0], dtype=torch.int64)
