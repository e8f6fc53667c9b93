"""Muon: momentum orthogonalised by Newton-Schulz for hidden matrices, AdamW for the rest.

Sources: Jordan et al. 2024 (kellerjordan.github.io/posts/muon) for the algorithm and the quintic's
coefficients; Moonlight (Liu et al. 2025, arXiv:2502.16982, section 2.2) for weight decay and the
factor 0.2 * sqrt(max(rows, columns)) that gives updates AdamW's usual RMS, so that one learning
rate serves both parts. A stack of matrices (the experts of a mixture) is updated matrix by matrix.
"""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Parameter

from lmworks.train.optim.adamw import update_adamw
from lmworks.train.optim.config import MuonConfig
from lmworks.train.optim.weights import Weights, decayed_names, prefixed

# Jordan et al.: steep at 0, singular values land in about [0.7, 1.2] after 5 steps.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_MIN_NORM = 1e-7


class Muon:
    """Muon with an AdamW part; implements `Optimizer`."""

    def __init__(
        self, named_parameters: Iterable[tuple[str, Parameter]], config: MuonConfig
    ) -> None:
        self.config = config
        self._weights = Weights(named_parameters)
        self._decayed = decayed_names(self._weights, config.decay)
        self._hidden = [name for name in self._weights.params if self._is_hidden_matrix(name)]
        others = [name for name in self._weights.params if name not in self._hidden]
        self._momentum = self._weights.zeros(self._hidden)
        self._exp_avg = self._weights.zeros(others)
        self._exp_avg_sq = self._weights.zeros(others)
        self._step = torch.zeros((), dtype=torch.int64)

    def _is_hidden_matrix(self, name: str) -> bool:
        is_named = not set(name.split(".")).isdisjoint(self.config.adamw_names)
        return self._weights.params[name].ndim in (2, 3) and not is_named

    def step(self, *, lr: float, grad_scale: float = 1.0) -> None:
        """See `Optimizer.step`."""
        self._step += 1
        names = self._weights.with_grad()
        for name in names:
            if name in self._momentum:
                self._update_matrix(name, lr, grad_scale)
        update_adamw(
            self._weights,
            [name for name in names if name not in self._momentum],
            self._exp_avg,
            self._exp_avg_sq,
            decayed=self._decayed,
            lr=lr * self.config.adamw_lr_ratio,
            beta1=self.config.adamw_beta1,
            beta2=self.config.adamw_beta2,
            eps=self.config.adamw_eps,
            weight_decay=self.config.weight_decay,
            step=int(self._step),
            grad_scale=grad_scale,
        )

    @torch.no_grad()
    def _update_matrix(self, name: str, lr: float, grad_scale: float) -> None:
        weight, momentum = self._weights.full_precision(name), self._momentum[name]
        grad = self._weights.grad(name).to(weight.dtype) * grad_scale
        momentum.lerp_(grad, 1 - self.config.momentum)
        update = grad.lerp_(momentum, self.config.momentum) if self.config.nesterov else momentum
        orthogonal = orthogonalize(update, self.config.ns_steps)
        if name in self._decayed:
            weight.mul_(1 - lr * self.config.weight_decay)
        weight.add_(orthogonal, alpha=-lr * 0.2 * max(weight.shape[-2:]) ** 0.5)
        self._weights.write_back(name)

    def zero_grad(self) -> None:
        """See `Optimizer.zero_grad`."""
        self._weights.zero_grad()

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Optimizer.state_tensors`."""
        return {
            "step": self._step,
            **prefixed("momentum", self._momentum),
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


def orthogonalize(
    matrix: Float[Tensor, "*stack rows columns"], num_steps: int
) -> Float[Tensor, "*stack rows columns"]:
    """bfloat16 approximation of U V^T where matrix = U S V^T, by Newton-Schulz iteration.

    A stack of matrices is one product for all of them.

    Costs 2 * r^2 * (2c + r) FLOPs a step for r = min(rows, columns) and c = max(rows, columns).
    """
    a, b, c = _QUINTIC
    x = matrix.bfloat16()
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=_MIN_NORM)
    product_and_sum = torch.addmm if x.ndim == 2 else torch.baddbmm
    for _ in range(num_steps):
        gram = x @ x.mT
        polynomial = product_and_sum(gram, gram, gram, beta=b, alpha=c)
        x = product_and_sum(x, polynomial, x, beta=a)
    return x.mT if is_tall else x
