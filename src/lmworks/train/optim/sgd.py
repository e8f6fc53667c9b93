"""Stochastic gradient descent with momentum, as torch.optim.SGD computes it."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from lmworks.train.optim.config import SGDConfig
from lmworks.train.optim.weights import Weights, decayed_names, prefixed


class SGD:
    """SGD; implements `Optimizer`."""

    def __init__(
        self, named_parameters: Iterable[tuple[str, Parameter]], config: SGDConfig
    ) -> None:
        self.config = config
        self._weights = Weights(named_parameters)
        self._decayed = decayed_names(self._weights, config.decay)
        with_state = self._weights.params if config.momentum > 0 else {}
        self._momentum = self._weights.zeros(with_state)
        self._step = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def step(self, *, lr: float, grad_scale: float = 1.0) -> None:
        """See `Optimizer.step`."""
        self._step += 1
        for name in self._weights.with_grad():
            weight = self._weights.full_precision(name)
            update = self._weights.grad(name).to(weight.dtype) * grad_scale
            if name in self._decayed and self.config.weight_decay > 0:
                update.add_(weight, alpha=self.config.weight_decay)
            if self.config.momentum > 0:
                momentum = self._momentum[name]
                momentum.mul_(self.config.momentum).add_(update)
                if self.config.nesterov:
                    update.add_(momentum, alpha=self.config.momentum)
                else:
                    update = momentum
            weight.add_(update, alpha=-lr)
            self._weights.write_back(name)

    def zero_grad(self) -> None:
        """See `Optimizer.zero_grad`."""
        self._weights.zero_grad()

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Optimizer.state_tensors`."""
        return {
            "step": self._step,
            **prefixed("momentum", self._momentum),
            **prefixed("master", self._weights.masters),
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Optimizer.load_state_tensors`."""
        self._weights.load_state(self.state_tensors(), tensors)

    def master_weights(self) -> dict[str, Tensor]:
        """See `Optimizer.master_weights`."""
        return self._weights.master_weights()
