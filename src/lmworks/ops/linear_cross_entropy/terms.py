"""What the loss returns, and the argument checks that every backend shares."""

from typing import NamedTuple

import torch
from torch import Tensor


class LossTerms(NamedTuple):
    """Sums over the tokens that are not ignored; divide by `num_tokens` for means.

    Differentiate `loss_sum + z_loss_sum` (or a multiple of it): the fused kernel computes the
    gradient of that sum in its forward pass.
    """

    loss_sum: Tensor
    """Cross-entropy in nats, 0-d, float32 (float64 for float64 inputs)."""
    z_loss_sum: Tensor
    """z_loss_weight * sum of logsumexp^2, same dtype."""
    num_tokens: Tensor
    """Number of targets that are not ignored, 0-d int64."""


def check_arguments(
    hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, bias_V: Tensor | None
) -> None:
    """Raise ValueError for shapes or dtypes that do not fit together."""
    if hidden_NC.ndim != 2 or weight_VC.ndim != 2 or hidden_NC.shape[1] != weight_VC.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden_NC.shape)} and weight {tuple(weight_VC.shape)} must be "
            "(tokens, d_model) and (vocab_size, d_model)"
        )
    # Autocast brings them to one dtype later.
    if hidden_NC.dtype != weight_VC.dtype and not torch.is_autocast_enabled(hidden_NC.device.type):
        raise ValueError(
            f"hidden is {hidden_NC.dtype} and weight {weight_VC.dtype}; they must have one dtype"
        )
    if targets_N.shape != hidden_NC.shape[:1]:
        raise ValueError(
            f"targets {tuple(targets_N.shape)} must be one per token: ({hidden_NC.shape[0]},)"
        )
    if targets_N.dtype != torch.int64:
        raise ValueError(f"targets have dtype {targets_N.dtype}; they must be torch.int64")
    if bias_V is not None and bias_V.shape != weight_VC.shape[:1]:
        raise ValueError(
            f"bias {tuple(bias_V.shape)} must be one per vocabulary entry: ({weight_VC.shape[0]},)"
        )


def bad_target(targets_N: Tensor, vocab_size: int, ignore_index: int) -> IndexError | None:
    """The error for the first target outside the vocabulary, or None when all are inside."""
    is_bad_N = ((targets_N < 0) | (targets_N >= vocab_size)) & (targets_N != ignore_index)
    if not bool(is_bad_N.any()):
        return None
    position = int(is_bad_N.nonzero()[0, 0])
    return IndexError(
        f"targets[{position}]={int(targets_N[position])} is outside the vocabulary of "
        f"{vocab_size}; allowed: 0 to {vocab_size - 1}, or ignore_index={ignore_index}"
    )
