"""What training minimises, as sums over target tokens.

    total = sum ln(1 / p(token i + 1))                                     the loss proper
          + z_loss_weight * sum logsumexp(logits)^2
          + mtp.loss_weight / D * sum over depths k of sum ln(1 / p_k(token i + k + 1))
          + balance losses and z-loss of routers, which come weighted   (see `nn.moe.balance`)

The third line is equations 24 and 25 of DeepSeek-V3 (arXiv 2412.19437) once the whole is divided by
the number of target tokens, which happens in `train.step`: every depth is divided by the same
number, though fewer tokens have a target there.

Legend: B sequences, T tokens, D depths, C d_model, V vocab.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmworks.data.loader import IGNORE_INDEX
from lmworks.models.decoder import Decoder
from lmworks.nn.moe.balance import Routing
from lmworks.ops.linear_cross_entropy import linear_cross_entropy


class Losses(NamedTuple):
    """Sums over the target tokens of a micro-batch; only `total` leads back to the model."""

    total: Float[Tensor, ""]
    """What is differentiated."""
    loss_sum: Float[Tensor, ""]
    """Cross-entropy of the next token, in nats."""
    z_loss_sum: Float[Tensor, ""]
    """Already weighted."""
    mtp_loss_sums_D: Float[Tensor, " D"]
    """Cross-entropy of each depth, in nats, not weighted."""
    mtp_num_tokens_D: Int[Tensor, " D"]
    """Target tokens of each depth."""
    routing: Routing | None
    """What the routers did, where there are any; its losses are in `total`."""


def training_losses(
    model: Decoder,
    inputs_BT: Int[Tensor, "B T"],
    targets_BT: Int[Tensor, "B T"],
    document_ids_BT: Int[Tensor, "B T"] | None,
    *,
    z_loss_weight: float,
    target_share: float = 1.0,
) -> Losses:
    """One forward pass, from which `total.backward()` can follow.

    `target_share`: targets per token of the whole step. Routers choose for every token, so their
    losses come as sums over all of them; times this they are divided by all tokens in the end.
    """
    out = model.train_hidden(inputs_BT, document_ids_BT=document_ids_BT)
    head_VC, softcap = model.head_weight_VC, model.config.logit_softcap
    next_token = linear_cross_entropy(
        out.hidden_BTC.flatten(0, 1),
        head_VC,
        targets_BT.flatten(),
        z_loss_weight=z_loss_weight,
        logit_softcap=softcap,
    )
    total = next_token.loss_sum + next_token.z_loss_sum
    further = [
        linear_cross_entropy(
            hidden_BTC.flatten(0, 1),
            head_VC,
            further_targets(targets_BT, document_ids_BT, depth=depth).flatten(),
            logit_softcap=softcap,
        )
        for depth, hidden_BTC in enumerate(out.mtp_hidden, start=1)
    ]
    for terms in further:
        total = total + model.config.mtp.loss_weight / len(further) * terms.loss_sum
    if out.routing is not None:
        routers = out.routing.balance_loss.sum() + out.routing.z_loss.sum()
        total = total + target_share * routers
    return Losses(
        total,
        next_token.loss_sum.detach(),
        next_token.z_loss_sum.detach(),
        torch.tensor([terms.loss_sum.item() for terms in further], dtype=torch.float64),
        torch.tensor([terms.num_tokens.item() for terms in further], dtype=torch.int64),
        out.routing,
    )


def further_targets(
    targets_BT: Int[Tensor, "B T"], document_ids_BT: Int[Tensor, "B T"] | None, *, depth: int
) -> Int[Tensor, "B T"]:
    """The token that follows `depth` tokens after each next one, which the depth predicts.

    Ignored where the tokens that lead there are not all in the row and in one document, so that
    packed documents are trained as each of them alone.
    """
    num_tokens = targets_BT.shape[1]
    is_outside_BT = torch.arange(num_tokens, device=targets_BT.device) >= num_tokens - depth
    if document_ids_BT is not None:
        is_outside_BT = is_outside_BT | (document_ids_BT.roll(-depth, 1) != document_ids_BT)
    return targets_BT.roll(-depth, 1).masked_fill(is_outside_BT, IGNORE_INDEX)
