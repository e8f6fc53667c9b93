"""Loads the compiled kernels (lmworks/_ops.so) on first use.

Importing an operator loads nothing native; the first call of one of its native kernels does. The
library registers itself as `torch.ops.lmworks.*`.
"""

import functools
import importlib.util

import torch

from lmworks.base.errors import ConfigError

_ISA_NAMES = ("portable", "avx2", "avx512")


@functools.cache
def load() -> None:
    """Load the library once; raises ConfigError when it was not built or does not fit torch."""
    spec = importlib.util.find_spec("lmworks._ops")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the native kernels (lmworks/_ops.so) are not installed; reinstall with "
            "`pip install .` and a C++20 compiler, or set LMWORKS_KERNELS=reference"
        )
    try:
        torch.ops.load_library(spec.origin)  # type: ignore[no-untyped-call]
    except OSError as err:
        raise ConfigError(
            f"the native kernels do not load with torch {torch.__version__} ({err}); reinstall "
            "with `pip install .`, or set LMWORKS_KERNELS=reference"
        ) from None


def isa_name() -> str:
    """Instruction set that the kernels run with: "portable", "avx2" or "avx512".

    Raises:
        ConfigError: LMWORKS_ISA names an unknown one or one this CPU lacks.
    """
    load()
    try:
        return _ISA_NAMES[torch.ops.lmworks.active_isa()]
    except RuntimeError as err:
        raise ConfigError(str(err).splitlines()[0]) from None
