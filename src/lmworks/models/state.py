"""From weights on disk, whatever their format, to a model: checked first, then filled in place.

A format says what it has (`headers`, under our names) and writes one tensor at a time into memory
that it is given (`fill`). The model is built without memory, and each weight gets its own just
before it is filled, so that loading takes the model's size and one small buffer:

    class MyWeights:                                    # a WeightSource
        where = "model.xyz"
        headers = {"embed.weight": Header((49152, 576), torch.float32), ...}

        def fill(self, name: str, out: Tensor) -> None:
            for start, stop in row_chunks(len(out), row_bytes):     # from tensor_file
                out[start:stop].copy_(decode(name, start, stop))    # copy_ converts dtypes

    model = build_decoder(config, MyWeights(), dtype=torch.bfloat16)
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lmworks.base.errors import CheckpointError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.tensor_file import Header
from lmworks.nn.tables import FixedTables

_MAX_NAMES_IN_ERROR = 3


@runtime_checkable
class WeightSource(Protocol):
    """Weights somewhere on disk, under the names of `ModelConfig.weight_shapes`."""

    @property
    def where(self) -> str:
        """The file or folder, for errors."""

    @property
    def headers(self) -> Mapping[str, Header]:
        """Shape and dtype of every weight that is there.

        The dtype is the one that the model gets when none is asked for; a quantized format names
        the one that it decodes to. Every shape must be backed by bytes in the file: after the
        check against the config, memory is allocated by it.
        """

    def fill(self, name: str, out: Tensor) -> None:
        """Overwrite all of `out` (CPU, contiguous, of the header's shape, in a float dtype)."""


def build_decoder(
    config: ModelConfig, source: WeightSource, *, dtype: torch.dtype | None = None
) -> Decoder:
    """The model of `config` with the weights of `source`, in evaluation mode, on the CPU.

    Weights are converted to `dtype`, or stay as they are stored (None). Buffers (the router's
    balancing bias) always stay: they are sums of small steps that a short format would lose.
    Nothing is allocated before names, shapes and dtypes have been found right.

    Raises:
        CheckpointError: the tensors are those of another architecture; names the first missing,
            unexpected and mis-shaped ones. Also whatever `source.fill` raises.
    """
    check_weights(config, source.headers, where=source.where)
    with torch.device("meta"):
        model = Decoder(config)
    buffers = dict(model.named_buffers())
    for name, header in source.headers.items():
        is_buffer = name in buffers
        target = header.dtype if dtype is None or is_buffer else dtype
        weight = torch.empty(header.shape, dtype=target)
        source.fill(name, weight)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, weight if is_buffer else nn.Parameter(weight))
    for module in model.modules():
        if isinstance(module, FixedTables):
            module.build_tables(torch.device("cpu"))
    return model.eval()


def check_weights(config: ModelConfig, found: Mapping[str, Header], *, where: str) -> None:
    """Raise CheckpointError unless `found` are the weights of `config`, all and no others."""
    # First, because listing the shapes of a forged num_layers could take all memory.
    if config.num_layers > len(found):
        raise CheckpointError(
            f"{where}: {len(found)} tensors cannot be a model of num_layers={config.num_layers}"
        )
    wanted = config.weight_shapes()
    shared = [n for n in wanted if n in found]
    problems = name_problems("missing", [n for n in wanted if n not in found])
    problems += name_problems("unexpected", [n for n in found if n not in wanted])
    problems += name_problems(
        "mis-shaped",
        [f"{n} {found[n].shape} not {wanted[n]}" for n in shared if found[n].shape != wanted[n]],
    )
    problems += name_problems(
        "not floating point",
        [
            f"{n} {str(found[n].dtype).removeprefix('torch.')}"
            for n in shared
            if not found[n].dtype.is_floating_point
        ],
    )
    if problems:
        raise CheckpointError(
            f"{where}: not the weights of this model's config: {'; '.join(problems)}"
        )


def name_problems(label: str, names: list[str]) -> list[str]:
    """One line that shows the first few of `names`, or none."""
    if not names:
        return []
    more = len(names) - _MAX_NAMES_IN_ERROR
    tail = f" and {more} more" if more > 0 else ""
    return [f"{label}: {', '.join(names[:_MAX_NAMES_IN_ERROR])}{tail}"]
