"""Many small MLPs, each applied to its own rows: the inside of a mixture of experts.

    rows = Rows(token_S, weight_S, ends_E)
    out_NC = expert_mlp(x_NC, rows, ExpertWeights(gate, up, down), activation="swiglu")

Row s is token `token_S[s]` at the expert in whose range of `ends_E` it is; what comes out is added
to the token's output, times `weight_S[s]`. Experts differ in their numbers of rows; none is padded.
Shapes: N tokens, S rows, E experts, C channels, F hidden width of an expert.
"""

from jaxtyping import Float
from torch import Tensor

from lmworks.ops.dispatch import Kernel, Operator
from lmworks.ops.expert_mlp import cpu, reference
from lmworks.ops.expert_mlp.arguments import ExpertWeights, Rows, check_arguments

__all__ = ["ExpertWeights", "Rows", "expert_mlp"]

OPERATOR = Operator(
    "expert_mlp",
    schema=cpu.SCHEMA,
    reference=reference.expert_mlp,
    kernels={"cpu": Kernel(cpu.expert_mlp, device="cpu", dtypes=cpu.DTYPES)},
)


def expert_mlp(
    x_NC: Float[Tensor, "N C"], rows: Rows, experts: ExpertWeights, *, activation: str
) -> Float[Tensor, "N C"]:
    """sum over the rows s of a token: weight_s * down_e(act(gate_e x) * up_e x).

    Args:
        activation: name as in `nn.config.mlp`; a plain one without `experts.gate`: down_e(act(up_e
            x)).

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    check_arguments(x_NC, rows, experts, activation)
    kernel = OPERATOR.pick(x_NC.device, x_NC.dtype)
    return kernel(x_NC, rows, experts, activation=activation)
