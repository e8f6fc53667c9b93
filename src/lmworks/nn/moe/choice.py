"""What a router decides: pairs of a token and an expert, each with a weight.

Shapes: N tokens, E experts, S pairs (N K for routers that give each token K experts).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


class Choice(NamedTuple):
    """Which token goes to which expert. A pair occurs once; order means nothing."""

    token_S: Int[Tensor, " S"]
    expert_S: Int[Tensor, " S"]
    weight_S: Float[Tensor, " S"]
    """Factor of the expert's output; fp32, and what the router learns through."""
    logits_NE: Float[Tensor, "N E"] | None
    """What the scores are made of; None where nothing is scored."""
    probs_NE: Float[Tensor, "N E"] | None
    """Scores that sum to 1 over the experts."""


def pairs(
    experts_NK: Int[Tensor, "N K"],
    weights_NK: Float[Tensor, "N K"],
    logits_NE: Float[Tensor, "N E"] | None,
    probs_NE: Float[Tensor, "N E"] | None,
) -> Choice:
    """The choice that gives each token the K experts of its row; pairs are in token order."""
    num_tokens, top_k = experts_NK.shape
    token_N = torch.arange(num_tokens, device=experts_NK.device)
    return Choice(
        token_N.repeat_interleave(top_k, output_size=num_tokens * top_k),
        experts_NK.flatten(),
        weights_NK.flatten(),
        logits_NE,
        probs_NE,
    )


def exact_linear(
    x_NC: Float[Tensor, "N C"], weight_EC: Float[Tensor, "E C"]
) -> Float[Tensor, "N E"]:
    """x W^T in at least fp32: two experts that bf16 cannot tell apart would flip with noise
    (Switch, arXiv 2101.03961, section 2.4)."""
    dtype = torch.promote_types(x_NC.dtype, torch.float32)
    return F.linear(x_NC.to(dtype), weight_EC.to(dtype))
