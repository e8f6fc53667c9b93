"""Experts on the CPU, registered with torch as `lmworks::expert_mlp`.

All that runs per expert is native (csrc/bindings/ops_expert_mlp.cpp): its rows are gathered,
multiplied, bent and added to their tokens while they are in cache. Only what gate and up give is
kept for the backward pass; the rest is computed again from it there. The gradient of a row's weight
needs no output of its expert: it is grad . (down h) = (down^T grad) . h, and down^T grad is there.

Precision: products in the dtype of the inputs, everything between in float32; a token's experts and
the gradients of a token's rows are added in float32, expert by expert, so results do not depend on
the number of threads by more than torch's matrix products do.
"""

from typing import Any

import torch
from torch import Tensor

from lmworks.ops import native
from lmworks.ops.expert_mlp.arguments import ExpertWeights, Rows
from lmworks.ops.workspace import borrow

DTYPES = frozenset({torch.float32, torch.bfloat16})
SCHEMA = (
    "expert_mlp(Tensor x_NC, Tensor token_S, Tensor weight_S, Tensor ends_E, Tensor? gate_EFC, "
    "Tensor up_EFC, Tensor down_ECF, str activation, bool is_recording) -> "
    "(Tensor out_NC, Tensor pre)"
)

# In the order of lmworks::Activation (csrc/include/lmworks/kernels.h).
_CODES = ("identity", "relu", "relu2", "sigmoid", "silu", "gelu", "gelu_tanh")
_NAMES = {
    "glu": "sigmoid",
    "bilinear": "identity",
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "swiglu": "silu",
}

_LIBRARY = torch.library.Library("lmworks", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(SCHEMA)  # type: ignore[no-untyped-call]


def expert_mlp(x_NC: Tensor, rows: Rows, experts: ExpertWeights, *, activation: str) -> Tensor:
    """See the public function."""
    tensors = (x_NC, rows.weight_S, *experts)
    is_recording = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )
    out_NC: Tensor
    out_NC, _ = torch.ops.lmworks.expert_mlp(x_NC, *rows, *experts, activation, is_recording)
    return out_NC


def _code(activation: str) -> int:
    return _CODES.index(_NAMES.get(activation, activation))


def padded(num_rows: Any) -> Any:
    """Room for `num_rows` rows of one expert, which the native code may round up. A
    compiler passes a number that stands for any: it is added and divided only."""
    return num_rows + num_rows // 8 + 16


def _most_rows(ends_E: Tensor) -> int:
    """Rows of the largest expert."""
    return int(ends_E.diff(prepend=ends_E.new_zeros(1)).amax())


@torch.library.impl(_LIBRARY, "expert_mlp", "CPU")
def _forward(  # noqa: PLR0917 (torch passes them by position)
    x_NC: Tensor,
    token_S: Tensor,
    weight_S: Tensor,
    ends_E: Tensor,
    gate_EFC: Tensor | None,
    up_EFC: Tensor,
    down_ECF: Tensor,
    activation: str,
    is_recording: bool,
) -> tuple[Tensor, Tensor]:
    native.load()
    d_ff, d_model = up_EFC.shape[1:]
    num_pre = 1 if gate_EFC is None else 2
    capacity = padded(_most_rows(ends_E))
    pre = _new_pre(x_NC, token_S, gate_EFC, up_EFC) if is_recording else None
    # One tensor for all scratch, because a second `borrow` would end the first one.
    scratch_columns = 2 * d_model + d_ff
    columns = scratch_columns + (0 if is_recording else num_pre * d_ff)
    memory = borrow((capacity * columns,), x_NC.dtype)
    scratch, rest = memory.tensor_split((capacity * scratch_columns,))
    sums_NC = torch.zeros(x_NC.shape, dtype=torch.float32)
    torch.ops.lmworks.expert_mlp_forward_(
        x_NC.contiguous(),
        token_S.contiguous(),
        weight_S.contiguous(),
        ends_E.contiguous(),
        None if gate_EFC is None else gate_EFC.contiguous(),
        up_EFC.contiguous(),
        down_ECF.contiguous(),
        _code(activation),
        rest.view(num_pre, capacity, d_ff) if pre is None else pre,
        is_recording,
        scratch.view(capacity, scratch_columns),
        sums_NC,
    )
    return sums_NC.to(x_NC.dtype), x_NC.new_empty(0) if pre is None else pre


def _new_pre(x_NC: Tensor, token_S: Tensor, gate_EFC: Tensor | None, up_EFC: Tensor) -> Tensor:
    num_pre = 1 if gate_EFC is None else 2
    return x_NC.new_empty(num_pre, padded(token_S.shape[0]), up_EFC.shape[1])


@torch.library.register_fake("lmworks::expert_mlp", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _fake(  # noqa: PLR0917
    x_NC: Tensor,
    token_S: Tensor,
    weight_S: Tensor,
    ends_E: Tensor,
    gate_EFC: Tensor | None,
    up_EFC: Tensor,
    down_ECF: Tensor,
    activation: str,
    is_recording: bool,
) -> tuple[Tensor, Tensor]:
    pre = _new_pre(x_NC, token_S, gate_EFC, up_EFC) if is_recording else x_NC.new_empty(0)
    return x_NC.new_empty(x_NC.shape), pre


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


_LIBRARY.define(
    "expert_mlp_backward(Tensor grad_NC, Tensor x_NC, Tensor token_S, Tensor weight_S, "
    "Tensor ends_E, Tensor? gate_EFC, Tensor up_EFC, Tensor down_ECF, Tensor pre, str activation, "
    "bool wants_experts) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)  # type: ignore[no-untyped-call]


@torch.library.impl(_LIBRARY, "expert_mlp_backward", "CPU")
def _backward_kernel(  # noqa: PLR0917
    grad_NC: Tensor,
    x_NC: Tensor,
    token_S: Tensor,
    weight_S: Tensor,
    ends_E: Tensor,
    gate_EFC: Tensor | None,
    up_EFC: Tensor,
    down_ECF: Tensor,
    pre: Tensor,
    activation: str,
    wants_experts: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, weights, gate, up, down; the last three empty where not wanted."""
    native.load()
    d_ff, d_model = up_EFC.shape[1:]
    capacity = padded(_most_rows(ends_E))
    columns = 2 * d_model + 4 * d_ff
    sums_NC = torch.zeros(x_NC.shape, dtype=torch.float32)
    grad_weight_S = torch.zeros_like(weight_S)
    gate, up, down = (
        _empty_like(w) if wants_experts and w is not None else None
        for w in (gate_EFC, up_EFC, down_ECF)
    )
    torch.ops.lmworks.expert_mlp_backward_(
        x_NC.contiguous(),
        token_S.contiguous(),
        weight_S.contiguous(),
        ends_E.contiguous(),
        None if gate_EFC is None else gate_EFC.contiguous(),
        up_EFC.contiguous(),
        down_ECF.contiguous(),
        _code(activation),
        grad_NC.contiguous(),
        pre,
        borrow((capacity, columns), x_NC.dtype),
        sums_NC,
        grad_weight_S,
        gate,
        up,
        down,
    )
    gate, up, down = (x_NC.new_empty(0) if w is None else w for w in (gate, up, down))
    return sums_NC.to(x_NC.dtype), grad_weight_S, gate, up, down


@torch.library.register_fake("lmworks::expert_mlp_backward", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _backward_fake(  # noqa: PLR0917
    grad_NC: Tensor,
    x_NC: Tensor,
    token_S: Tensor,
    weight_S: Tensor,
    ends_E: Tensor,
    gate_EFC: Tensor | None,
    up_EFC: Tensor,
    down_ECF: Tensor,
    pre: Tensor,
    activation: str,
    wants_experts: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    gate, up, down = (
        _empty_like(w) if wants_experts and w is not None else x_NC.new_empty(0)
        for w in (gate_EFC, up_EFC, down_ECF)
    )
    return x_NC.new_empty(x_NC.shape), torch.empty_like(weight_S), gate, up, down


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.activation, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, grad_NC: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(
            "expert_mlp has no second derivative; use it under use_kernels('reference')"
        )
    if grad_NC is None:
        return (None,) * 9
    wants = ctx.needs_input_grad
    x, weight, gate, up, down = torch.ops.lmworks.expert_mlp_backward(
        grad_NC, *ctx.saved_tensors, ctx.activation, any(wants[4:7])
    )
    grads = (x, None, weight, None, gate, up, down, None, None)
    return tuple(g if is_wanted else None for g, is_wanted in zip(grads, wants, strict=True))


torch.library.register_autograd(
    "lmworks::expert_mlp", _backward, setup_context=_setup_context, lib=_LIBRARY
)
