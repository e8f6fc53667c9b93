"""Experts one after the other, each as an MLP is usually written."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lmworks.ops.activation import GATE_ACTIVATIONS, PLAIN_ACTIVATIONS
from lmworks.ops.expert_mlp.arguments import ExpertWeights, Rows


def expert_mlp(
    x_NC: Float[Tensor, "N C"], rows: Rows, experts: ExpertWeights, *, activation: str
) -> Float[Tensor, "N C"]:
    """Sums over experts in at least fp32; see the public function for the arguments."""
    sum_dtype = torch.promote_types(x_NC.dtype, torch.float32)
    out_NC = torch.zeros(x_NC.shape, dtype=sum_dtype, device=x_NC.device)
    start = 0
    for expert, end in enumerate(rows.ends_E.tolist()):
        token_R, weight_R1 = rows.token_S[start:end], rows.weight_S[start:end, None]
        x_RC = x_NC[token_R]
        hidden_RF = F.linear(x_RC, experts.up_EFC[expert])
        if experts.gate_EFC is None:
            hidden_RF = PLAIN_ACTIVATIONS[activation](hidden_RF)
        else:
            gate_RF = F.linear(x_RC, experts.gate_EFC[expert])
            hidden_RF = GATE_ACTIVATIONS[activation](gate_RF) * hidden_RF
        y_RC = F.linear(hidden_RF, experts.down_ECF[expert])
        out_NC = out_NC.index_add(0, token_R, (y_RC * weight_R1).to(sum_dtype))
        start = end
    return out_NC.to(x_NC.dtype)
