"""The operator table: which kernels an operator has, and which one runs.

An operator is declared once with its reference (plain PyTorch, any device and dtype) and its
kernels. `Operator.pick` takes the first kernel that serves the device and dtype at hand, else the
reference. LMWORKS_KERNELS=reference in the environment, or `with use_kernels("reference"):`, forces
one backend; a forced backend that an operator lacks is an error, never a silent fallback.

Native code is loaded at the first call of a kernel, see `native`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from lmworks.base.config import suggest
from lmworks.base.errors import ConfigError

BACKENDS = ("reference", "cpu")

P = ParamSpec("P")
R = TypeVar("R")

OPERATORS: dict[str, "Operator[..., Any]"] = {}
"""Every declared operator by name, filled when its folder is imported."""


@dataclass(frozen=True)
class Kernel(Generic[P, R]):
    """One implementation and what it can serve."""

    function: Callable[P, R]
    device: str
    """torch device type, for example "cpu"."""
    dtypes: frozenset[torch.dtype]


class Operator(Generic[P, R]):
    """An entry of the operator table.

    Args:
        name: as in `torch.ops.lmworks.NAME` where a kernel registers itself with torch.
        schema: arguments and results in torch's schema language.
        reference: plain PyTorch, right on every device and dtype.
        kernels: backend name -> kernel; the first that fits is taken.
    """

    def __init__(
        self,
        name: str,
        *,
        schema: str,
        reference: Callable[P, R],
        kernels: Mapping[str, Kernel[P, R]],
    ) -> None:
        self.name = name
        self.schema = schema
        self.reference = reference
        self.kernels = dict(kernels)
        OPERATORS[name] = self

    def backends(self) -> list[str]:
        """Names that `use_kernels` accepts for this operator."""
        return ["reference", *self.kernels]

    def pick(self, device: torch.device, dtype: torch.dtype) -> Callable[P, R]:
        """The implementation for tensors of this device and dtype."""
        forced = _forced.backend
        if forced == "reference":
            return self.reference
        if forced is not None:
            return self._forced_kernel(forced, device, dtype)
        for kernel in self.kernels.values():
            if kernel.device == device.type and dtype in kernel.dtypes:
                return kernel.function
        return self.reference

    def _forced_kernel(
        self, backend: str, device: torch.device, dtype: torch.dtype
    ) -> Callable[P, R]:
        kernel = self.kernels.get(backend)
        if kernel is not None and kernel.device == device.type and dtype in kernel.dtypes:
            return kernel.function
        served = [
            f"{name} ({k.device}: {', '.join(sorted(str(d) for d in k.dtypes))})"
            for name, k in self.kernels.items()
        ]
        raise ConfigError(
            f"operator {self.name!r} has no {backend!r} kernel for {dtype} on {device.type}; "
            f"it has: {', '.join(['reference (any device and dtype)', *served])}"
        )


def _checked(backend: str) -> str:
    if backend not in BACKENDS:
        raise ConfigError(f"kernels {backend!r}: no such backend{suggest(backend, BACKENDS)}")
    return backend


class Forced:
    """The forced backend, at first that of LMWORKS_KERNELS; None: each operator chooses."""

    def __init__(self) -> None:
        wanted = os.environ.get("LMWORKS_KERNELS", "")
        self.backend: str | None = _checked(wanted) if wanted else None


_forced = Forced()


def is_reference_forced() -> bool:
    """Whether every operator has to run its plain twin."""
    return _forced.backend == "reference"


@contextmanager
def use_kernels(backend: str) -> Iterator[None]:
    """Force one backend ("reference" or "cpu") for every operator inside the block."""
    previous, _forced.backend = _forced.backend, _checked(backend)
    try:
        yield
    finally:
        _forced.backend = previous
