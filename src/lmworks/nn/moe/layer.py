"""Mixture of experts: a router sends each token to a few of many small MLPs and adds them up.

    y = shared(x) + sum over the chosen experts e of weight_e * expert_e(x)

Fine-grained and shared experts: DeepSeekMoE (Dai et al. 2024, arXiv 2401.06066, section 3). Tokens
are sorted by expert, every expert runs on its own rows (`ops.expert_mlp`), and nothing is padded
(MegaBlocks, Gale et al. 2022, 2211.15841). With a `capacity_factor` full experts drop tokens in
training, which then pass through the shared experts and the residual stream alone.
Shapes: B batch, T tokens, N = B T, C channels, E experts, S pairs of a token and an expert.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmworks.nn.config import MoEConfig
from lmworks.nn.mlp import make_mlp
from lmworks.nn.moe.assignment import BalancedRouter
from lmworks.nn.moe.balance import Routing, entropy_sum, routing_losses
from lmworks.nn.moe.choice import Choice
from lmworks.nn.moe.dispatch import dispatch
from lmworks.nn.moe.expert_choice import ExpertChoiceRouter
from lmworks.nn.moe.hashed import HashRouter
from lmworks.nn.moe.topk import NoisyTopKRouter, TopKRouter
from lmworks.ops.expert_mlp import ExpertWeights, Rows, expert_mlp

Router = TopKRouter | NoisyTopKRouter | ExpertChoiceRouter | HashRouter | BalancedRouter


class Experts(nn.Module):
    """The weights of all experts, stacked; they have no biases."""

    gate: nn.Parameter | None

    def __init__(self, config: MoEConfig, *, d_model: int) -> None:
        super().__init__()
        size = (config.num_experts, config.d_ff, d_model)
        self.gate = nn.Parameter(torch.empty(size)) if config.is_gated else None
        self.up = nn.Parameter(torch.empty(size))
        self.down = nn.Parameter(torch.empty(config.num_experts, d_model, config.d_ff))


class MoE(nn.Module):
    """Router, experts, and shared experts if there are any."""

    def __init__(self, config: MoEConfig, *, d_model: int, use_bias: bool, layer: int) -> None:
        """`layer` tells the layers of a model apart for routers that hash."""
        super().__init__()
        self.config = config
        self.router = make_router(config, d_model=d_model, layer=layer)
        self.experts = Experts(config, d_model=d_model)
        self.shared: nn.Module | None = None
        if config.shared_mlp is not None:
            self.shared = make_mlp(config.shared_mlp, d_model=d_model, use_bias=use_bias)

    def forward(
        self, x_BTC: Float[Tensor, "B T C"], token_ids_BT: Int[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T C"], Routing]:
        """Output, and what the router did. Only routers that hash need the token ids."""
        x_NC = x_BTC.flatten(0, 1)
        choice = self._choose(x_NC, token_ids_BT)
        capacity = None
        if self.training and self.config.capacity_factor:
            capacity = self.config.capacity(len(x_NC))
        sent = dispatch(
            choice.expert_S,
            choice.weight_S.detach(),
            num_experts=self.config.num_experts,
            capacity=capacity,
            drop=self.config.drop,
        )
        order_S = sent.order_S
        y_NC = expert_mlp(
            x_NC,
            Rows(choice.token_S[order_S], choice.weight_S[order_S], sent.ends_E),
            ExpertWeights(self.experts.gate, self.experts.up, self.experts.down),
            activation=self.config.activation,
        )
        y_BTC = y_NC.view(x_BTC.shape)
        if self.shared is not None:
            y_BTC = y_BTC + self.shared(x_BTC)
        balance_loss, z_loss = routing_losses(
            self.config.balance, choice, sent.chosen_E, sequence_length=x_BTC.shape[1]
        )
        return y_BTC, Routing(
            balance_loss,
            z_loss,
            sent.chosen_E,
            entropy_sum(choice.probs_NE, choice.weight_S),
            sent.chosen_E.sum() - sent.ends_E[-1],
        )

    def _choose(self, x_NC: Tensor, token_ids_BT: Tensor | None) -> Choice:
        if not isinstance(self.router, HashRouter):
            return self.router(x_NC)
        if token_ids_BT is None:
            raise ValueError("router.kind=hash chooses by token ids; pass token_ids_BT")
        return self.router(x_NC, token_ids_BT.flatten())


def make_router(config: MoEConfig, *, d_model: int, layer: int) -> Router:
    """The router that `config` names."""
    router, num_experts = config.router, config.num_experts
    match router.kind:
        case "topk":
            return TopKRouter(router, d_model=d_model, num_experts=num_experts)
        case "noisy_topk":
            return NoisyTopKRouter(router, d_model=d_model, num_experts=num_experts)
        case "expert_choice":
            return ExpertChoiceRouter(router, d_model=d_model, num_experts=num_experts)
        case "hash":
            return HashRouter(num_experts=num_experts, layer=layer)
        case "sinkhorn" | "auction":
            return BalancedRouter(router, d_model=d_model, num_experts=num_experts)
