"""AdamW over named parameters; the arithmetic is `ops.adamw`."""

from collections.abc import Iterable, Mapping, Sequence, Set

import torch
from torch import Tensor
from torch.nn import Parameter

from lmworks.ops.adamw import adamw_step_
from lmworks.train.optim.config import AdamWConfig
from lmworks.train.optim.weights import Weights, decayed_names, prefixed


class AdamW:
    """AdamW with decoupled weight decay; implements `Optimizer`."""

    def __init__(
        self, named_parameters: Iterable[tuple[str, Parameter]], config: AdamWConfig
    ) -> None:
        self.config = config
        self._weights = Weights(named_parameters)
        self._decayed = decayed_names(self._weights, config.decay)
        self._exp_avg = self._weights.zeros(self._weights.params)
        self._exp_avg_sq = self._weights.zeros(self._weights.params)
        self._step = torch.zeros((), dtype=torch.int64)

    def step(self, *, lr: float, grad_scale: float = 1.0) -> None:
        """See `Optimizer.step`."""
        self._step += 1
        update_adamw(
            self._weights,
            self._weights.with_grad(),
            self._exp_avg,
            self._exp_avg_sq,
            decayed=self._decayed,
            lr=lr,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            eps=self.config.eps,
            weight_decay=self.config.weight_decay,
            step=int(self._step),
            grad_scale=grad_scale,
        )

    def zero_grad(self) -> None:
        """See `Optimizer.zero_grad`."""
        self._weights.zero_grad()

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Optimizer.state_tensors`."""
        return {
            "step": self._step,
            **prefixed("exp_avg", self._exp_avg),
            **prefixed("exp_avg_sq", self._exp_avg_sq),
            **prefixed("master", self._weights.masters),
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Optimizer.load_state_tensors`."""
        self._weights.load_state(self.state_tensors(), tensors)

    def master_weights(self) -> dict[str, Tensor]:
        """See `Optimizer.master_weights`."""
        return self._weights.master_weights()


def update_adamw(
    weights: Weights,
    names: Sequence[str],
    exp_avg: Mapping[str, Tensor],
    exp_avg_sq: Mapping[str, Tensor],
    *,
    decayed: Set[str],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    grad_scale: float,
) -> None:
    """One AdamW step of the named parameters; those in `decayed` decay."""
    for is_decayed in (True, False):
        group = [name for name in names if (name in decayed) is is_decayed]
        adamw_step_(
            [weights.params[name] for name in group],
            [weights.grad(name) for name in group],
            [exp_avg[name] for name in group],
            [exp_avg_sq[name] for name in group],
            masters=[weights.masters.get(name) for name in group],
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay if is_decayed else 0.0,
            step=step,
            grad_scale=grad_scale,
        )
