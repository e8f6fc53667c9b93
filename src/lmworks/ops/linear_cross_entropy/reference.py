"""Head and loss written out plainly: logits in the input dtype, then everything in float32."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lmworks.ops.linear_cross_entropy.terms import LossTerms, bad_target


def linear_cross_entropy(
    hidden_NC: Float[Tensor, "tokens d_model"],
    weight_VC: Float[Tensor, "vocab_size d_model"],
    targets_N: Int[Tensor, " tokens"],
    *,
    bias_V: Float[Tensor, " vocab_size"] | None,
    ignore_index: int,
    z_loss_weight: float,
    logit_softcap: float,
) -> LossTerms:
    """Holds all logits; see the public function for the arguments."""
    if not torch.compiler.is_compiling():
        error = bad_target(targets_N, weight_VC.shape[0], ignore_index)
        if error is not None:
            raise error
    logits_NV = F.linear(hidden_NC, weight_VC, bias_V)
    if logits_NV.dtype != torch.float64:
        logits_NV = logits_NV.float()
    if logit_softcap > 0:
        logits_NV = logit_softcap * torch.tanh(logits_NV / logit_softcap)
    loss_sum = F.cross_entropy(logits_NV, targets_N, ignore_index=ignore_index, reduction="sum")
    is_counted_N = targets_N != ignore_index
    lse_N = torch.where(is_counted_N, torch.logsumexp(logits_NV, dim=1), 0.0)
    return LossTerms(loss_sum, z_loss_weight * lse_N.square().sum(), is_counted_N.sum())
