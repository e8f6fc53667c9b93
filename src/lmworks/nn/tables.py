"""Constant tables of a module (rotations, sinusoids) that stay exact through every conversion.

`model.to(torch.bfloat16)` would round a buffer, and `to_empty` would leave it blank. A table is a
function of the config, so it is built anew after each conversion, always in fp32 and always on the
device that the module went to. It is not part of a checkpoint.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn


class FixedTables(nn.Module, ABC):
    """Base of modules whose buffers are computed by `make_tables`; holds no parameters itself."""

    def __init__(self) -> None:
        super().__init__()
        self._table_names: tuple[str, ...] = ()

    @abstractmethod
    def make_tables(self, device: torch.device) -> dict[str, Tensor]:
        """The fp32 tables by name, on `device`."""

    def build_tables(self, device: torch.device) -> None:
        """Compute the tables; called once by the subclass when its sizes are known."""
        tables = self.make_tables(device)
        self._table_names = tuple(tables)
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FixedTables":
        # The one hook that .to(), .cuda(), .bfloat16(), .to_empty() all go through.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.build_tables(self.get_buffer(self._table_names[0]).device)
        return self
