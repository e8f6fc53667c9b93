"""The weights an optimizer works on: named parameters and their float32 masters.

A bfloat16 parameter is too coarse to collect small updates (8 bits of significand: an update below
1/256 of the weight is lost), so its optimizer keeps a float32 master, updates that, and writes the
rounded value back. A float32 or float64 parameter is its own master.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from lmworks.base.errors import CheckpointError, ConfigError


class Weights:
    """Trainable parameters, in the order given."""

    def __init__(self, named_parameters: Iterable[tuple[str, Parameter]]) -> None:
        self.params = {name: p for name, p in named_parameters if p.requires_grad}
        if not self.params:
            raise ConfigError("the optimizer was given no trainable parameter")
        self.masters = {
            name: p.detach().float()
            for name, p in self.params.items()
            if p.dtype in (torch.bfloat16, torch.float16)
        }

    def full_precision(self, name: str) -> Tensor:
        """The tensor that collects the updates: the master, or the parameter itself."""
        return self.masters.get(name, self.params[name].detach())

    def with_grad(self) -> list[str]:
        """Names of the parameters that have a gradient now."""
        return [name for name, p in self.params.items() if p.grad is not None]

    def grad(self, name: str) -> Tensor:
        """The gradient of a parameter that has one."""
        grad = self.params[name].grad
        assert grad is not None, "callers take names from with_grad()"
        return grad

    @torch.no_grad()
    def write_back(self, name: str) -> None:
        """Round the master into the parameter; does nothing where there is none."""
        if name in self.masters:
            self.params[name].copy_(self.masters[name])

    def load_state(self, own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
        """Copy saved optimizer state over `own`; round the loaded masters into the parameters."""
        copy_state(own, saved)
        for name in self.masters:
            self.write_back(name)

    def zero_grad(self) -> None:
        """Set every gradient to None."""
        for param in self.params.values():
            param.grad = None

    def zeros(self, names: Iterable[str]) -> dict[str, Tensor]:
        """A zeroed full-precision state tensor for each name."""
        return {
            name: torch.zeros_like(self.full_precision(name), memory_format=torch.contiguous_format)
            for name in names
        }

    def master_weights(self) -> dict[str, Tensor]:
        """Full-precision weights by name."""
        return {name: self.full_precision(name) for name in self.params}


def decayed_names(weights: Weights, decay: str) -> set[str]:
    """Names that decay under the rule "matrices" (two or more dims), "all" or "none"."""
    return {
        name
        for name, p in weights.params.items()
        if decay == "all" or (decay == "matrices" and p.ndim >= 2)
    }


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Flat state names: "prefix.NAME"."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


@torch.no_grad()
def copy_state(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy every saved tensor over the one of the same name, after checking all of them."""
    missing, unknown = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    if missing or unknown:
        raise CheckpointError(
            "optimizer state is of another model or optimizer: "
            f"missing {_shorten(missing)}, unexpected {_shorten(unknown)}"
        )
    for name, tensor in own.items():
        if tensor.shape != saved[name].shape:
            raise CheckpointError(
                f"optimizer state {name!r} has shape {tuple(saved[name].shape)}; "
                f"this model needs {tuple(tensor.shape)}"
            )
        if tensor.dtype != saved[name].dtype:
            raise CheckpointError(
                f"optimizer state {name!r} has dtype {saved[name].dtype}; "
                f"this run needs {tensor.dtype} (was it saved with another precision?)"
            )
    for name, tensor in own.items():
        tensor.copy_(saved[name])


def _shorten(names: list[str]) -> str:
    shown = ", ".join(names[:3]) or "none"
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
