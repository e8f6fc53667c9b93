"""Fused head and loss on the CPU, registered with torch as `lmworks::linear_cross_entropy`.

Tokens go through in chunks. For each: logits = hidden @ weight.T into a reused buffer (oneDNN),
one native pass that turns them into losses and, in place, their gradient, then the gradients of
hidden and weight by two more matrix products. So the gradients are ready when forward returns;
backward only scales them, and does nothing when the incoming gradient is 1.

Memory: one chunk of logits (`max_logits_bytes`) and the gradients themselves. Chunks are small
because oneDNN is faster on them (bfloat16, 4,096 tokens, d_model 512, vocabulary 10,000: the three
products take about 20 % less in chunks of 512 than in one) and because the pass over logits then
runs in cache.

Precision: losses in float32, their sums in float64. The weight gradient in float32 for float32
inputs. For bfloat16 inputs a product returns bfloat16, so up to `_GROUP` chunks are added in
bfloat16 (each partial sum is rounded once, like the gradients that follow it in .grad), and groups
are added in float32.
"""

from typing import Any

import torch
from torch import Tensor

from lmworks.ops import native
from lmworks.ops.linear_cross_entropy.terms import LossTerms, bad_target
from lmworks.ops.workspace import borrow

DTYPES = frozenset({torch.float32, torch.bfloat16})
SCHEMA = (
    "linear_cross_entropy(Tensor hidden_NC, Tensor weight_VC, Tensor targets_N, Tensor? bias_V, "
    "int ignore_index, float z_loss_weight, float logit_softcap, bool wants_hidden_grad, "
    "bool wants_weight_grad, bool wants_bias_grad) -> "
    "(Tensor loss_sum, Tensor z_loss_sum, Tensor num_tokens, "
    "Tensor grad_hidden, Tensor grad_weight, Tensor grad_bias)"
)

_TARGET_LOGITS_BYTES = 16 * 2**20
_MIN_CHUNK_TOKENS = 256
_GROUP = 8

_LIBRARY = torch.library.Library("lmworks", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(SCHEMA)  # type: ignore[no-untyped-call]


def linear_cross_entropy(
    hidden_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    *,
    bias_V: Tensor | None,
    ignore_index: int,
    z_loss_weight: float,
    logit_softcap: float,
) -> LossTerms:
    """See the public function."""
    is_recording = torch.is_grad_enabled()
    loss_sum, z_loss_sum, num_tokens, *_ = torch.ops.lmworks.linear_cross_entropy(
        hidden_NC,
        weight_VC,
        targets_N,
        bias_V,
        ignore_index,
        z_loss_weight,
        logit_softcap,
        is_recording and hidden_NC.requires_grad,
        is_recording and weight_VC.requires_grad,
        is_recording and bias_V is not None and bias_V.requires_grad,
    )
    return LossTerms(loss_sum, z_loss_sum, num_tokens)


def chunk_tokens(num_tokens: int, vocab_size: int, itemsize: int) -> int:
    """Tokens per chunk: a power of two near 16 MiB of logits, at least 256, at most all."""
    fitting = max(_TARGET_LOGITS_BYTES // max(vocab_size * itemsize, 1), 1)
    size = max(1 << (fitting.bit_length() - 1), _MIN_CHUNK_TOKENS)
    return max(min(size, num_tokens), 1)


@torch.library.impl(_LIBRARY, "linear_cross_entropy", "CPU")
def _forward(  # noqa: PLR0917 (torch passes them by position)
    hidden_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    bias_V: Tensor | None,
    ignore_index: int,
    z_loss_weight: float,
    logit_softcap: float,
    wants_hidden_grad: bool,
    wants_weight_grad: bool,
    wants_bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    native.load()
    num_tokens, vocab_size = hidden_NC.shape[0], weight_VC.shape[0]
    error = bad_target(targets_N, vocab_size, ignore_index)
    if error is not None:
        raise error
    targets_N = targets_N.contiguous()
    losses_N, z_losses_N = torch.empty(2, num_tokens, dtype=torch.float32)
    grad_hidden_NC = _empty_like(hidden_NC, wants_hidden_grad)
    weight_sum = _WeightGradient(weight_VC, wants_weight_grad)
    grad_bias_V = hidden_NC.new_zeros(vocab_size * wants_bias_grad, dtype=torch.float32)
    size = chunk_tokens(num_tokens, vocab_size, hidden_NC.element_size())
    logits_KV = borrow((size, vocab_size), hidden_NC.dtype)
    for start in range(0, num_tokens, size):
        chunk = slice(start, min(start + size, num_tokens))
        hidden_KC, logits = hidden_NC[chunk], logits_KV[: chunk.stop - start]
        if bias_V is None:
            torch.mm(hidden_KC, weight_VC.T, out=logits)
        else:
            torch.addmm(bias_V, hidden_KC, weight_VC.T, out=logits)
        torch.ops.lmworks.cross_entropy_rows_(
            logits,
            targets_N[chunk],
            losses_N[chunk],
            z_losses_N[chunk],
            ignore_index,
            z_loss_weight,
            logit_softcap,
            wants_hidden_grad or wants_weight_grad or wants_bias_grad,
        )
        if wants_hidden_grad:
            torch.mm(logits, weight_VC, out=grad_hidden_NC[chunk])
        if wants_weight_grad:
            weight_sum.add(logits, hidden_KC)
        if wants_bias_grad:
            grad_bias_V += logits.sum(0, dtype=torch.float32)
    return (
        losses_N.sum(dtype=torch.float64).float(),
        z_losses_N.sum(dtype=torch.float64).float(),
        (targets_N != ignore_index).sum(),
        grad_hidden_NC,
        weight_sum.result(),
        grad_bias_V if bias_V is None else grad_bias_V.to(bias_V.dtype),
    )


def _empty_like(tensor: Tensor, is_wanted: bool) -> Tensor:
    return tensor.new_empty(tensor.shape if is_wanted else (0,))


class _WeightGradient:
    """Sum over chunks of dlogits.T @ hidden; see "Precision" above."""

    def __init__(self, weight_VC: Tensor, is_wanted: bool) -> None:
        self._sum_VC = _empty_like(weight_VC, is_wanted)
        self._total_VC: Tensor | None = None
        self._max_group = _GROUP if weight_VC.dtype == torch.bfloat16 else None
        self._in_group = 0

    def add(self, dlogits_KV: Tensor, hidden_KC: Tensor) -> None:
        if self._in_group == self._max_group:
            self._close_group()
        if self._in_group == 0:
            torch.mm(dlogits_KV.T, hidden_KC, out=self._sum_VC)
        else:
            torch.addmm(self._sum_VC, dlogits_KV.T, hidden_KC, out=self._sum_VC)
        self._in_group += 1

    def _close_group(self) -> None:
        if self._total_VC is None:
            self._total_VC = self._sum_VC.float()
        else:
            self._total_VC += self._sum_VC
        self._in_group = 0

    def result(self) -> Tensor:
        if self._in_group == 0:
            return self._sum_VC.zero_()
        if self._total_VC is not None:
            self._close_group()
            self._sum_VC.copy_(self._total_VC)
        return self._sum_VC


@torch.library.register_fake("lmworks::linear_cross_entropy", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _fake(  # noqa: PLR0917
    hidden_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    bias_V: Tensor | None,
    ignore_index: int,
    z_loss_weight: float,
    logit_softcap: float,
    wants_hidden_grad: bool,
    wants_weight_grad: bool,
    wants_bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    bias_dtype = torch.float32 if bias_V is None else bias_V.dtype
    return (
        hidden_NC.new_empty((), dtype=torch.float32),
        hidden_NC.new_empty((), dtype=torch.float32),
        targets_N.new_empty(()),
        _empty_like(hidden_NC, wants_hidden_grad),
        _empty_like(weight_VC, wants_weight_grad),
        hidden_NC.new_empty(weight_VC.shape[0] * wants_bias_grad, dtype=bias_dtype),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.has_z_loss = inputs[5] != 0
    ctx.wants = inputs[7:10]
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(*output[3:])


def _backward(
    ctx: Any, grad_loss: Tensor | None, grad_z_loss: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(
            "linear_cross_entropy has no second derivative; use it under use_kernels('reference')"
        )
    factor = grad_loss if grad_loss is not None else grad_z_loss
    if factor is None:
        return (None,) * 10
    # Tracers pass tensor subclasses, whose values cannot be read.
    is_readable = type(factor) is Tensor
    if is_readable and ctx.has_z_loss:
        _check_same(grad_loss, grad_z_loss)
    is_one = is_readable and factor.item() == 1
    hidden, weight, bias = (
        (grad if is_one else grad * factor) if is_wanted else None
        for grad, is_wanted in zip(ctx.saved_tensors, ctx.wants, strict=True)
    )
    return hidden, weight, None, bias, *(None,) * 6


def _check_same(grad_loss: Tensor | None, grad_z_loss: Tensor | None) -> None:
    if grad_loss is None or grad_z_loss is None or not torch.equal(grad_loss, grad_z_loss):
        raise ValueError(
            f"gradients of loss_sum ({grad_loss}) and z_loss_sum ({grad_z_loss}) differ; the fused "
            "kernel has the gradient of their sum: differentiate loss_sum + z_loss_sum"
        )


torch.library.register_autograd(
    "lmworks::linear_cross_entropy", _backward, setup_context=_setup_context, lib=_LIBRARY
)
torch.library.register_autocast(
    "lmworks::linear_cross_entropy", "cpu", torch.bfloat16, lib=_LIBRARY
)
