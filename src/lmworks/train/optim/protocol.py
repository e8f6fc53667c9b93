"""What every optimizer offers to the training loop."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class Optimizer(Protocol):
    """Updates parameters in place; the learning rate comes from outside, step by step."""

    def step(self, *, lr: float, grad_scale: float = 1.0) -> None:
        """Apply one update; gradients are read as `grad_scale * grad` and left unchanged.

        Parameters whose gradient is None are skipped, as in torch.optim.
        """

    def zero_grad(self) -> None:
        """Drop all gradients (set to None)."""

    def state_tensors(self) -> dict[str, Tensor]:
        """All state by flat name ("step", "exp_avg.NAME", "master.NAME", ...), not copied."""

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a saved state in; raises CheckpointError when names or shapes do not match."""

    def master_weights(self) -> dict[str, Tensor]:
        """Full-precision weights by parameter name, not copied."""
