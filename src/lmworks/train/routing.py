"""What the routers of a mixture of experts did in one optimizer step, over all micro-batches.

Two readers: the metrics, and the selection biases that balance loads without a loss (Wang et al.
2024, arXiv 2408.15664). Legend: L layers with experts (those of multi-token prediction last),
E experts.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmworks.nn.moe.balance import Routing, update_selection_bias
from lmworks.nn.moe.layer import MoE

STARVED_BELOW = 0.1
"""An expert starves that gets less than this multiple of the even share."""


@dataclass(frozen=True)
class RoutingReport:
    """Figures of one step. Losses are per token, as they were added to the loss."""

    balance_loss: float
    z_loss: float
    load_LE: Float[Tensor, "L E"]
    """Pairs of token and expert, as a multiple of the even share: 1 is balanced."""
    router_entropy_L: Float[Tensor, " L"]
    """Mean entropy of a token's probabilities, in nats; ln E is undecided."""
    dropped_L: Float[Tensor, " L"]
    """Share of the pairs that full experts dropped."""

    @property
    def load_entropy_L(self) -> Float[Tensor, " L"]:
        """Entropy of the loads over that of even ones: 1 is balanced, 0 is one expert for all."""
        num_experts = self.load_LE.shape[1]
        if num_experts == 1:
            return torch.ones(len(self.load_LE), dtype=self.load_LE.dtype)
        share_LE = self.load_LE / num_experts
        return -torch.xlogy(share_LE, share_LE).sum(-1) / math.log(num_experts)

    @property
    def starved_L(self) -> Int[Tensor, " L"]:
        """Experts of each layer that starve."""
        return (self.load_LE < STARVED_BELOW).sum(-1)

    def scalars(self) -> dict[str, float]:
        """What every step logs: means over the layers, and the starved experts of all."""
        return {
            "balance_loss": self.balance_loss,
            "router_z_loss": self.z_loss,
            "load_entropy": round(float(self.load_entropy_L.mean()), 4),
            "starved_experts": int(self.starved_L.sum()),
            "dropped": round(float(self.dropped_L.mean()), 4),
        }

    def table(self) -> dict[str, list[Any]]:
        """Layer by layer, for a log: loads in percent of the even share, in whole numbers."""
        return {
            "load_percent": (100 * self.load_LE).round().int().tolist(),
            "router_entropy": _rounded(self.router_entropy_L),
            "load_entropy": _rounded(self.load_entropy_L),
            "starved_experts": self.starved_L.tolist(),
            "dropped": _rounded(self.dropped_L),
        }


class RoutingSums:
    """Adds up the micro-batches of one step."""

    def __init__(self, routing: Routing, *, num_tokens: int) -> None:
        """Start with those of the first micro-batch, of `num_tokens` tokens."""
        self._sums, self._num_tokens = _exact(routing), num_tokens

    def add(self, routing: Routing, *, num_tokens: int) -> None:
        """Add those of a further micro-batch."""
        parts = zip(self._sums, _exact(routing), strict=True)
        self._sums = Routing(*(old + new for old, new in parts))
        self._num_tokens += num_tokens

    @property
    def tokens_per_expert_LE(self) -> Int[Tensor, "L E"]:
        """Before any was dropped."""
        return self._sums.tokens_per_expert

    def report(self) -> RoutingReport:
        """The step's figures."""
        sums, chosen_LE = self._sums, self._sums.tokens_per_expert.double()
        pairs_L = chosen_LE.sum(-1).clamp(min=1)
        return RoutingReport(
            balance_loss=float(sums.balance_loss.sum()) / self._num_tokens,
            z_loss=float(sums.z_loss.sum()) / self._num_tokens,
            load_LE=chosen_LE / pairs_L[:, None] * chosen_LE.shape[1],
            router_entropy_L=sums.entropy_sum / self._num_tokens,
            dropped_L=sums.num_dropped / pairs_L,
        )


def update_selection_biases(model: nn.Module, tokens_per_expert_LE: Int[Tensor, "L E"]) -> None:
    """Move every selection bias towards even loads, by the loads of one optimizer step."""
    layers = [module for module in model.modules() if isinstance(module, MoE)]
    for moe, chosen_E in zip(layers, tokens_per_expert_LE, strict=True):
        if moe.config.balance.bias_rate:
            bias_E = moe.router.get_buffer("bias")
            update_selection_bias(bias_E, chosen_E, rate=moe.config.balance.bias_rate)


def _exact(routing: Routing) -> Routing:
    """Without gradients, in numbers that sums of many do not round."""
    return Routing(
        *(part.detach().double() if part.is_floating_point() else part for part in routing)
    )


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]
