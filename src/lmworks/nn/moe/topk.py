"""Token choice: every token takes the K experts that score highest for it.

With noise: Shazeer et al. 2017 (arXiv 1701.06538). With K = 1: Switch (Fedus et al. 2021,
2101.03961). With normalised weights: Mixtral (Jiang et al. 2024, 2401.04088). Sigmoid scores, the
selection bias and choice limited to groups: DeepSeek-V2 (2405.04434, section 2.2.2) and V3
(2412.19437, section 2.1.2).
Shapes: N tokens, C channels, E experts, K experts per token, G groups of experts.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lmworks.nn.config import NoisyTopKRouterConfig, TopKRouterConfig
from lmworks.nn.moe.choice import Choice, exact_linear, pairs

_SMALLEST_SUM = 1e-20  # as DeepSeek-V3: all sigmoids of a token may underflow


class TopKRouter(nn.Module):
    """Weights are the scores of the chosen, perhaps normalised, times a constant."""

    bias: Tensor | None

    def __init__(self, config: TopKRouterConfig, *, d_model: int, num_experts: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(num_experts, d_model))
        bias = torch.zeros(num_experts) if config.selection_bias else None
        self.register_buffer("bias", bias)

    def forward(self, x_NC: Float[Tensor, "N C"]) -> Choice:
        """Score, choose, weigh."""
        config = self.config
        logits_NE = exact_linear(x_NC, self.weight)
        if config.score == "softmax":
            scores_NE = probs_NE = logits_NE.softmax(dim=-1)
        else:
            scores_NE = logits_NE.sigmoid()
            probs_NE = scores_NE / scores_NE.sum(-1, keepdim=True).clamp(min=_SMALLEST_SUM)
        experts_NK = self._choose(scores_NE.detach())
        weights_NK = scores_NE.gather(1, experts_NK)
        if config.normalize:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + _SMALLEST_SUM)
        return pairs(experts_NK, weights_NK * config.scale, logits_NE, probs_NE)

    def _choose(self, scores_NE: Float[Tensor, "N E"]) -> Int[Tensor, "N K"]:
        config = self.config
        if self.bias is not None:
            scores_NE = scores_NE + self.bias
        if config.num_groups > 1:
            in_top_NE = in_top_groups(
                scores_NE, config.num_groups, config.top_groups, config.group_score
            )
            scores_NE = scores_NE.masked_fill(~in_top_NE, -torch.inf)
        return scores_NE.topk(config.top_k, dim=-1).indices

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TopKRouter":
        # The bias is a sum of steps of 0.001 that bf16 would swallow: it moves between devices with
        # the module and keeps its dtype.
        bias = self.bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if bias is not None and self.bias is not None and self.bias.dtype != bias.dtype:
            self.bias = bias.to(self.bias.device)
        return self


class NoisyTopKRouter(nn.Module):
    """softmax over the K highest of logits + noise * softplus(x W_noise); no noise outside
    training."""

    def __init__(self, config: NoisyTopKRouterConfig, *, d_model: int, num_experts: int) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.weight = nn.Parameter(torch.empty(num_experts, d_model))
        self.noise_weight = nn.Parameter(torch.empty(num_experts, d_model))

    def forward(self, x_NC: Float[Tensor, "N C"]) -> Choice:
        """Equations 3 to 5 of the paper."""
        logits_NE = exact_linear(x_NC, self.weight)
        if self.training:
            noise_std_NE = F.softplus(exact_linear(x_NC, self.noise_weight))
            logits_NE = logits_NE + torch.randn_like(logits_NE) * noise_std_NE
        top = logits_NE.topk(self.top_k, dim=-1)
        return pairs(top.indices, top.values.softmax(-1), logits_NE, logits_NE.softmax(-1))


def in_top_groups(
    scores_NE: Float[Tensor, "N E"], num_groups: int, top_groups: int, group_score: str
) -> Tensor:
    """Whether an expert is in one of the token's best groups; bool, N E."""
    scores_NGe = scores_NE.view(len(scores_NE), num_groups, -1)
    if group_score == "max":
        ranks_NG = scores_NGe.amax(dim=-1)
    else:
        ranks_NG = scores_NGe.topk(2, dim=-1).values.sum(dim=-1)
    chosen_Ng = ranks_NG.topk(top_groups, dim=-1).indices
    is_top_NG = torch.zeros_like(ranks_NG, dtype=torch.bool).scatter(1, chosen_Ng, True)
    return is_top_NG.unsqueeze(-1).expand_as(scores_NGe).flatten(1)
