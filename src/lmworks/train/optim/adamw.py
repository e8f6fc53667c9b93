"""AdamW over named parameters; the arithmetic is `ops.adamw`."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from lmworks.ops.adamw import adamw_step_
from lmworks.train.optim.config import AdamWConfig
from lmworks.train.optim.weights import Weights, copy_state, decayed_names, prefixed


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
        names = self._weights.with_grad()
        decayed = [name for name in names if name in self._decayed]
        others = [name for name in names if name not in self._decayed]
        self._update(decayed, lr, self.config.weight_decay, grad_scale)
        self._update(others, lr, 0.0, grad_scale)

    def _update(self, names: list[str], lr: float, weight_decay: float, grad_scale: float) -> None:
        weights, config = self._weights, self.config
        adamw_step_(
            [weights.params[name] for name in names],
            [weights.grad(name) for name in names],
            [self._exp_avg[name] for name in names],
            [self._exp_avg_sq[name] for name in names],
            masters=[weights.masters.get(name) for name in names],
            lr=lr,
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
            weight_decay=weight_decay,
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
        """See `Optimizer.load_state_tensors`; rounds the loaded masters into the parameters."""
        copy_state(self.state_tensors(), tensors)
        for name in self._weights.masters:
            self._weights.write_back(name)

    def master_weights(self) -> dict[str, Tensor]:
        """See `Optimizer.master_weights`."""
        return self._weights.master_weights()
