"""Expert choice: every expert takes the tokens that score highest for it (Zhou et al. 2022,
"Mixture-of-Experts with Expert Choice Routing", arXiv 2202.09368, section 3.2).

Loads are equal by construction and tokens get more or fewer experts, perhaps none. Which tokens an
expert takes depends on all tokens it sees, later ones too: a language model trained this way has
read hints of the future, and cannot decode token by token.
Shapes: N tokens, C channels, E experts, K tokens per expert.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmworks.nn.config import ExpertChoiceRouterConfig
from lmworks.nn.moe.choice import Choice, exact_linear


class ExpertChoiceRouter(nn.Module):
    """K = N * mean_experts / E tokens per expert, weighted by their softmax over the experts."""

    def __init__(self, config: ExpertChoiceRouterConfig, *, d_model: int, num_experts: int) -> None:
        super().__init__()
        self.mean_experts = config.mean_experts
        self.weight = nn.Parameter(torch.empty(num_experts, d_model))

    def forward(self, x_NC: Float[Tensor, "N C"]) -> Choice:
        """Rank all tokens for every expert."""
        logits_NE = exact_linear(x_NC, self.weight)
        probs_NE = logits_NE.softmax(dim=-1)
        num_tokens, num_experts = logits_NE.shape
        taken = min(num_tokens, math.ceil(num_tokens * self.mean_experts / num_experts))
        weights_EK, tokens_EK = probs_NE.T.topk(taken, dim=-1)
        expert_E = torch.arange(num_experts, device=x_NC.device)
        expert_S = expert_E.repeat_interleave(taken, output_size=num_experts * taken)
        return Choice(tokens_EK.flatten(), expert_S, weights_EK.flatten(), logits_NE, probs_NE)
