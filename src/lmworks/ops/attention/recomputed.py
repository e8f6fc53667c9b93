"""Attention with written-out scores that are not kept: the backward pass computes them again.

For what fused kernels lack, the soft-cap (Gemma 2, arXiv 2408.00118, section 2). With z the final
scores, w = softmax(z) and o = w v, the gradients are

    dz = w (dw - sum_S(w dw)),   dw = do v^T,   d(capped) = dz (1 - (capped / cap)^2)

and a sink is one more column of z whose value is zero.
Shapes: B batch, H query heads, K kv heads, T queries, S keys, D elements of a key, E of a
value; heads that share keys are stacked along T for the products.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable


class Terms(NamedTuple):
    """Numbers of the formula."""

    scale: float
    logit_softcap: float
    """0: scores are not capped."""


def recomputed_attention(
    q_BHTD: Float[Tensor, "B H T D"],
    k_BKSD: Float[Tensor, "B K S D"],
    v_BKSE: Float[Tensor, "B K S E"],
    *,
    mask: Bool[Tensor, "... T S"] | None,
    bias: Float[Tensor, "... T S"] | None,
    sinks: Float[Tensor, " H"] | None,
    terms: Terms,
) -> Float[Tensor, "B H T E"]:
    """As the public function; holds the B x H x T x S scores for a moment, keeps only inputs."""
    if mask is None:
        num_queries, num_keys = q_BHTD.shape[2], k_BKSD.shape[2]
        ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_BHTD.device)
        mask = ones.tril(num_keys - num_queries)
    apply: Callable[..., Tensor] = _Recomputed.apply
    return apply(q_BHTD, k_BKSD, v_BKSE, mask, bias, sinks, terms)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (torch passes them by position)
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        terms: Terms,
    ) -> Tensor:
        ctx.terms = terms
        ctx.save_for_backward(q, k, v, mask, bias, sinks)
        weights, _ = _weights(q, k, mask=mask, bias=bias, sinks=sinks, terms=terms)
        return _times_keys(weights[..., : k.shape[2]].to(v.dtype), v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, bias, sinks = ctx.saved_tensors
        terms: Terms = ctx.terms
        weights, capped = _weights(q, k, mask=mask, bias=bias, sinks=sinks, terms=terms)
        seen = weights[..., : k.shape[2]]
        grad_v = _onto_keys(seen.to(v.dtype), grad_out, v.shape[1])
        grad_seen = _times_keys(grad_out, v.transpose(-1, -2)).to(weights.dtype)
        mean = (seen * grad_seen).sum(-1, keepdim=True)
        grad_z = seen * (grad_seen - mean)
        grad_bias = None if bias is None else grad_z.sum_to_size(_padded(bias)).view(bias.shape)
        grad_sinks = None
        if sinks is not None:
            grad_sinks = -(weights[..., -1:] * mean).sum((0, 2, 3)).to(sinks.dtype)
        if capped is not None:
            grad_z = grad_z * (1 - (capped / terms.logit_softcap).square())
        grad_scores = (grad_z * terms.scale).to(q.dtype)
        grad_q = _times_keys(grad_scores, k)
        grad_k = _onto_keys(grad_scores, q, k.shape[1])
        grad_bias = None if grad_bias is None or bias is None else grad_bias.to(bias.dtype)
        return grad_q, grad_k, grad_v, None, grad_bias, grad_sinks, None


def _weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    terms: Terms,
) -> tuple[Tensor, Tensor | None]:
    """softmax of the scores, with the sinks' as last column; and the capped scores, if capped."""
    scores = _times_keys(q, k.transpose(-1, -2)) * terms.scale
    scores = scores if scores.dtype == torch.float64 else scores.float()
    capped = None
    if terms.logit_softcap:
        capped = scores = terms.logit_softcap * torch.tanh(scores / terms.logit_softcap)
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    return scores.softmax(dim=-1), capped


def _times_keys(x_BHTX: Tensor, y_BKXY: Tensor) -> Tensor:
    """x @ y, where H / K heads of x share one of y; none of y is repeated."""
    return (_stacked(x_BHTX, y_BKXY.shape[1]) @ y_BKXY).view(*x_BHTX.shape[:-1], -1)


def _onto_keys(x_BHTS: Tensor, y_BHTD: Tensor, num_kv_heads: int) -> Tensor:
    """x^T @ y, summed over the heads that share keys: B K S D."""
    return _stacked(x_BHTS, num_kv_heads).transpose(-1, -2) @ _stacked(y_BHTD, num_kv_heads)


def _stacked(x_BHTD: Tensor, num_kv_heads: int) -> Tensor:
    """The heads that share keys one below the other: B, K, T H / K, D."""
    batch, num_heads, num_tokens, dim = x_BHTD.shape
    return x_BHTD.reshape(batch, num_kv_heads, num_heads // num_kv_heads * num_tokens, dim)


def _padded(bias: Tensor) -> tuple[int, ...]:
    return (1,) * (4 - bias.ndim) + tuple(bias.shape)
