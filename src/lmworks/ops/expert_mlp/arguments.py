"""What all implementations of `expert_mlp` are given, and checks of it.

Shapes: N tokens, S rows, E experts, C channels, F hidden width of an expert.
"""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from lmworks.ops.activation import GATE_ACTIVATIONS, PLAIN_ACTIVATIONS


class Rows(NamedTuple):
    """Which token goes to which expert: one row per pair, sorted by expert."""

    token_S: Int[Tensor, " S"]
    """Within an expert every token at most once."""
    weight_S: Float[Tensor, " S"]
    ends_E: Int[Tensor, " E"]
    """Rows ends[e - 1] to ends[e] belong to expert e; rows after the last end count for nothing."""


class ExpertWeights(NamedTuple):
    """The matrices of all experts, stacked."""

    gate_EFC: Float[Tensor, "E F C"] | None
    up_EFC: Float[Tensor, "E F C"]
    down_ECF: Float[Tensor, "E C F"]


def check_arguments(x_NC: Tensor, rows: Rows, experts: ExpertWeights, activation: str) -> None:
    """Raise ValueError for shapes and dtypes that do not fit; values are not read."""
    gate, up, down = experts
    num_experts, d_ff, d_model = up.shape
    wanted = {
        "x": (x_NC, (x_NC.shape[0], d_model)),
        "weight": (rows.weight_S, (rows.token_S.shape[0],)),
        "ends": (rows.ends_E, (num_experts,)),
        "down": (down, (num_experts, d_model, d_ff)),
    }
    if gate is not None:
        wanted["gate"] = (gate, (num_experts, d_ff, d_model))
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; with up of shape {tuple(up.shape)} and "
                f"{rows.token_S.shape[0]} rows it must have {shape}"
            )
    dtypes = {w.dtype for w in experts if w is not None}
    if dtypes != {x_NC.dtype}:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"x is {x_NC.dtype}, the experts are {names}; they must be the same")
    known = PLAIN_ACTIVATIONS if gate is None else GATE_ACTIVATIONS
    if activation not in known:
        kind = "plain" if gate is None else "gated"
        raise ValueError(
            f"activation={activation!r} is not a {kind} one; those are: {', '.join(known)}"
        )
