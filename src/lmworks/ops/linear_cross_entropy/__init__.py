"""Output head and cross-entropy in one operator, without ever holding all logits.

    terms = linear_cross_entropy(hidden_NC, model.head_weight_VC, targets_N, z_loss_weight=1e-4)
    (terms.loss_sum + terms.z_loss_sum).backward()

Sources: z-loss from PaLM (Chowdhery et al. 2022, arXiv:2204.02311, section 5), logit soft-cap from
Gemma 2 (arXiv:2408.00118, section 2), gradients inside the forward pass as in Liger Kernel
(Hsu et al. 2024, arXiv:2410.10989).
"""

from jaxtyping import Float, Int
from torch import Tensor

from lmworks.ops.dispatch import Kernel, Operator
from lmworks.ops.linear_cross_entropy import cpu, reference
from lmworks.ops.linear_cross_entropy.terms import LossTerms, check_arguments

__all__ = ["LossTerms", "linear_cross_entropy"]

OPERATOR = Operator(
    "linear_cross_entropy",
    schema=cpu.SCHEMA,
    reference=reference.linear_cross_entropy,
    kernels={"cpu": Kernel(cpu.linear_cross_entropy, device="cpu", dtypes=cpu.DTYPES)},
)


def linear_cross_entropy(
    hidden_NC: Float[Tensor, "tokens d_model"],
    weight_VC: Float[Tensor, "vocab_size d_model"],
    targets_N: Int[Tensor, " tokens"],
    *,
    bias_V: Float[Tensor, " vocab_size"] | None = None,
    ignore_index: int = -100,
    z_loss_weight: float = 0.0,
    logit_softcap: float = 0.0,
) -> LossTerms:
    """Sums of cross-entropy and z-loss of `softcap(hidden @ weight.T + bias)` against targets.

    Args:
        ignore_index: targets with this value count for nothing.
        z_loss_weight: adds this times logsumexp(logits)^2 per token; 0 leaves it out.
        logit_softcap: logits become `cap * tanh(logits / cap)`; 0 leaves them as they are.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
        IndexError: a target outside the vocabulary that is not `ignore_index`.
    """
    check_arguments(hidden_NC, weight_VC, targets_N, bias_V)
    kernel = OPERATOR.pick(hidden_NC.device, hidden_NC.dtype)
    return kernel(
        hidden_NC,
        weight_VC,
        targets_N,
        bias_V=bias_V,
        ignore_index=ignore_index,
        z_loss_weight=z_loss_weight,
        logit_softcap=logit_softcap,
    )
