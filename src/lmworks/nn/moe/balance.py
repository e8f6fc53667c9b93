"""What keeps experts evenly used: losses on what the router chose, and a bias that needs none.

Every loss is a mean over tokens that equals 1 for even loads (the z-loss apart); `routing_losses`
multiplies by the weight and the number of tokens, because training sums losses over tokens and
divides once.

    f_i  share of the pairs that expert i got, times E (no gradient)
    P_i  mean probability that the router gave to expert i

Shapes: B sequences, T tokens, N = B T, E experts, S pairs, G groups of experts.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmworks.nn.config import BalanceConfig
from lmworks.nn.moe.choice import Choice
from lmworks.nn.moe.dispatch import counts


class Routing(NamedTuple):
    """What one router did in one forward pass, or several of them stacked (a first dim L each)."""

    balance_loss: Float[Tensor, "*L"]
    """Balance losses, weighted, summed over tokens; has the gradient."""
    z_loss: Float[Tensor, "*L"]
    """Router z-loss, likewise."""
    tokens_per_expert: Int[Tensor, "*L E"]
    """Pairs of each expert, before any was dropped."""
    entropy_sum: Float[Tensor, "*L"]
    """Entropy of the router's probabilities in nats, summed over tokens; 0 for hash routing."""
    num_dropped: Int[Tensor, "*L"]
    """Pairs that full experts dropped."""

    @classmethod
    def stack(cls, layers: "Iterable[Routing]") -> "Routing":
        """All layers as one; they must have the same number of experts."""
        return cls(*(torch.stack(parts) for parts in zip(*layers, strict=True)))


def routing_losses(
    config: BalanceConfig, choice: Choice, chosen_E: Int[Tensor, " E"], *, sequence_length: int
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """(balance losses, z-loss), weighted, summed over the tokens of `choice`.

    `chosen_E` counts its pairs by expert. Tokens come sequence by sequence.
    """
    zero = choice.weight_S.new_zeros(())
    logits_NE, probs_NE = choice.logits_NE, choice.probs_NE
    if logits_NE is None or probs_NE is None:
        return zero, zero
    num_tokens, balance, z = len(logits_NE), zero, zero
    if config.switch_weight:
        balance = balance + config.switch_weight * switch_loss(probs_NE, chosen_E)
    if config.device_weight:
        loss = device_loss(probs_NE, chosen_E, config.num_devices)
        balance = balance + config.device_weight * loss
    if config.sequence_weight:
        loss = sequence_loss(probs_NE, choice.token_S, choice.expert_S, sequence_length)
        balance = balance + config.sequence_weight * loss
    if config.z_weight:
        z = config.z_weight * router_z_loss(logits_NE)
    return balance * num_tokens, z * num_tokens


def switch_loss(probs_NE: Float[Tensor, "N E"], chosen_E: Int[Tensor, " E"]) -> Float[Tensor, ""]:
    """sum_i f_i P_i (Switch, arXiv 2101.03961, eq. 4 to 6; with several experts per token f counts
    all of them, as in DeepSeekMoE, 2401.06066, eq. 12 to 14)."""
    return load(chosen_E, probs_NE.dtype) @ probs_NE.mean(dim=0)


def device_loss(
    probs_NE: Float[Tensor, "N E"], chosen_E: Int[Tensor, " E"], num_devices: int
) -> Float[Tensor, ""]:
    """sum over devices of (mean f of its experts) (sum of their P); DeepSeekMoE, eq. 15 to 17."""
    load_G = load(chosen_E, probs_NE.dtype).view(num_devices, -1).mean(-1)
    prob_G = probs_NE.mean(dim=0).view(num_devices, -1).sum(-1)
    return load_G @ prob_G


def sequence_loss(
    probs_NE: Float[Tensor, "N E"],
    token_S: Int[Tensor, " S"],
    expert_S: Int[Tensor, " S"],
    sequence_length: int,
) -> Float[Tensor, ""]:
    """The Switch loss of each sequence alone, averaged (DeepSeek-V3, arXiv 2412.19437, eq. 17 to
    20)."""
    num_tokens, num_experts = probs_NE.shape
    num_sequences = num_tokens // sequence_length
    place_S = token_S.div(sequence_length, rounding_mode="floor") * num_experts + expert_S
    chosen_BE = counts(place_S, num_sequences * num_experts).view(num_sequences, num_experts)
    prob_BE = probs_NE.view(num_sequences, sequence_length, num_experts).mean(dim=1)
    return (load(chosen_BE, probs_NE.dtype) * prob_BE).sum(-1).mean()


def router_z_loss(logits_NE: Float[Tensor, "N E"]) -> Float[Tensor, ""]:
    """Mean of logsumexp(logits)^2, which keeps logits small (ST-MoE, arXiv 2202.08906, eq. 5)."""
    return logits_NE.logsumexp(dim=-1).square().mean()


def load(chosen: Int[Tensor, "*B E"], dtype: torch.dtype) -> Float[Tensor, "*B E"]:
    """f_i: pairs of each expert as a multiple of their mean, 1 where all are used alike."""
    share = chosen.to(dtype)
    return share / share.mean(dim=-1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)


def entropy_sum(probs_NE: Float[Tensor, "N E"] | None, like: Tensor) -> Float[Tensor, ""]:
    """Entropy of each token's probabilities, summed; 0 without probabilities."""
    if probs_NE is None:
        return like.new_zeros(())
    return torch.special.entr(probs_NE.detach()).sum()


@torch.no_grad()
def update_selection_bias(
    bias_E: Float[Tensor, " E"], tokens_per_expert: Int[Tensor, " E"], *, rate: float
) -> None:
    """In place: `rate` up for experts with less than the mean load, down for those with more.

    Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", arXiv
    2408.15664, algorithm 1: b_i += u sign(mean load - load_i). Call once per optimizer step, with
    the loads of the whole batch.
    """
    counts_E = tokens_per_expert.to(bias_E.dtype)
    bias_E += rate * torch.sign(counts_E.mean() - counts_E)
