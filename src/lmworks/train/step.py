"""One optimizer step: forward and backward over the micro-batches, clip, update.

Losses are summed, not averaged, over target tokens, and gradients with them; one division by the
step's total of target tokens happens at the end, folded with the clipping coefficient into the
optimizer's `grad_scale`. A batch cut into micro-batches with unequal numbers of targets therefore
has the gradient of the whole batch (averaging per micro-batch has not: huggingface/transformers
issue 34191).

Clipping is by the norm of all gradients together (Pascanu et al. 2013, "On the difficulty of
training recurrent neural networks", arXiv 1211.5063).

The losses themselves are in `train.loss`. Legend: B sequences, T tokens, D depths of
multi-token prediction.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lmworks.base.errors import TrainingError
from lmworks.data.loader import Batch
from lmworks.models.decoder import Decoder
from lmworks.train.blocks import replace_blocks
from lmworks.train.loss import Losses, training_losses
from lmworks.train.optim.clip import clip_scale, global_grad_norm
from lmworks.train.optim.protocol import Optimizer
from lmworks.train.routing import RoutingReport, RoutingSums, update_selection_biases


class NonFiniteError(TrainingError):
    """The loss or the gradient of a step is NaN or infinite; no weight was changed."""


@dataclass(frozen=True)
class StepReport:
    """What one step did; losses in nats per target token."""

    loss: float
    z_loss: float
    grad_norm: float
    """Norm over all parameters of the mean gradient, before clipping."""
    num_tokens: int
    """Target tokens (those not ignored)."""
    mtp_losses: tuple[float, ...]
    """Of each depth of multi-token prediction, per target token of that depth, not weighted."""
    routing: RoutingReport | None
    """Of a mixture of experts."""


class TrainStep:
    """Callable that trains `model` on one batch.

    Args:
        micro_batch_size: sequences per forward and backward pass.
        clip_norm: largest gradient norm; 0 clips nothing.
    """

    def __init__(
        self,
        model: Decoder,
        optimizer: Optimizer,
        *,
        micro_batch_size: int,
        num_micro_batches: int,
        clip_norm: float,
        z_loss_weight: float,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.micro_batch_size = micro_batch_size
        self.clip_norm = clip_norm
        self.z_loss_weight = z_loss_weight
        if num_micro_batches > 1:
            # bf16 keeps 8 bits: the small terms of a long sum would vanish in it.
            for parameter in model.parameters():
                parameter.grad_dtype = torch.float32

    def __call__(self, batch: Batch, *, lr: float) -> StepReport:
        """Train on `batch` with learning rate `lr`.

        Raises:
            NonFiniteError: before anything is updated, if the loss or gradient is not finite.
        """
        inputs_BT = torch.from_numpy(batch.inputs_BT)
        targets_BT = torch.from_numpy(batch.targets_BT)
        num_tokens = int((targets_BT >= 0).sum())
        if num_tokens == 0:
            raise TrainingError("a batch has no target tokens: every position is ignored")
        self.optimizer.zero_grad()
        documents, sums = batch.document_ids_BT, _Sums(self.model.config.mtp.depth)
        for rows in self._micro_batches(len(inputs_BT)):
            losses = training_losses(
                self.model,
                inputs_BT[rows],
                targets_BT[rows],
                None if documents is None else torch.from_numpy(documents[rows]),
                z_loss_weight=self.z_loss_weight,
                target_share=num_tokens / targets_BT.numel(),
            )
            torch.autograd.backward(losses.total)
            sums.add(losses, num_tokens=inputs_BT[rows].numel())
        if not math.isfinite(sums.total):
            raise NonFiniteError(f"loss is {sums.total / num_tokens}")
        grad_norm = global_grad_norm(self.model.parameters()) / num_tokens
        if not math.isfinite(grad_norm):
            raise NonFiniteError(f"gradient norm is {grad_norm}")
        clip = clip_scale(grad_norm, self.clip_norm) if self.clip_norm else 1.0
        self.optimizer.step(lr=lr, grad_scale=clip / num_tokens)
        if sums.routing is not None:
            update_selection_biases(self.model, sums.routing.tokens_per_expert_LE)
        return StepReport(
            loss=sums.loss / num_tokens,
            z_loss=sums.z_loss / num_tokens,
            grad_norm=grad_norm,
            num_tokens=num_tokens,
            mtp_losses=sums.mtp_losses(),
            routing=None if sums.routing is None else sums.routing.report(),
        )

    def _micro_batches(self, batch_size: int) -> list[slice]:
        size = self.micro_batch_size
        return [slice(start, start + size) for start in range(0, batch_size, size)]


class _Sums:
    """Losses of the micro-batches added up."""

    def __init__(self, num_depths: int) -> None:
        self.total = self.loss = self.z_loss = 0.0
        self._mtp_losses_D = torch.zeros(num_depths, dtype=torch.float64)
        self._mtp_tokens_D = torch.zeros(num_depths, dtype=torch.int64)
        self.routing: RoutingSums | None = None

    def add(self, losses: Losses, *, num_tokens: int) -> None:
        """Add those of one micro-batch of `num_tokens` tokens, targets or not."""
        self.total += losses.total.item()
        self.loss += losses.loss_sum.item()
        self.z_loss += losses.z_loss_sum.item()
        self._mtp_losses_D += losses.mtp_loss_sums_D.cpu()
        self._mtp_tokens_D += losses.mtp_num_tokens_D.cpu()
        if self.routing is not None:
            assert losses.routing is not None, "all micro-batches go through the same routers"
            self.routing.add(losses.routing, num_tokens=num_tokens)
        elif losses.routing is not None:
            self.routing = RoutingSums(losses.routing, num_tokens=num_tokens)

    def mtp_losses(self) -> tuple[float, ...]:
        """Mean of each depth over its own targets; 0 where it has none."""
        return tuple((self._mtp_losses_D / self._mtp_tokens_D.clamp(min=1)).tolist())


def recompute_activations(model: nn.Module) -> None:
    """Make every block keep only its input in training and run again in the backward pass.

    Memory for activations falls to one hidden state per block, for about a third more arithmetic
    (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174). Dropout
    draws the same masks again, so losses and gradients stay the same. Parameter names gain a
    `.block` part: build the optimizer first.
    """
    replace_blocks(model, _Recomputed)


class _Recomputed(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.block(*args, **kwargs)
        return checkpoint(self.block, *args, use_reentrant=False, **kwargs)
