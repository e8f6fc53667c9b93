"""Optimizers: AdamW, SGD and Muon behind one protocol.

    from lmworks.train.optim.build import build_optimizer
    from lmworks.train.optim.config import AdamWConfig
    optimizer = build_optimizer(AdamWConfig(), model.named_parameters())
    optimizer.step(lr=schedule.lr_at(step, total_steps, config.lr_peak), grad_scale=scale)

`config` holds the settings (no torch), `protocol` what every optimizer offers, `clip` the norm of
all gradients together. The names below load on first use, so that reading a recipe needs no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmworks.train.optim.adamw import AdamW
    from lmworks.train.optim.build import build_optimizer
    from lmworks.train.optim.muon import Muon
    from lmworks.train.optim.protocol import Optimizer
    from lmworks.train.optim.sgd import SGD

__all__ = ["SGD", "AdamW", "Muon", "Optimizer", "build_optimizer"]

_HOME = {
    "AdamW": "adamw",
    "Muon": "muon",
    "Optimizer": "protocol",
    "SGD": "sgd",
    "build_optimizer": "build",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
