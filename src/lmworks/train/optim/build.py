"""From an optimizer's settings to the optimizer."""

from collections.abc import Iterable

from torch.nn import Parameter

from lmworks.train.optim.adamw import AdamW
from lmworks.train.optim.config import AdamWConfig, MuonConfig, SGDConfig
from lmworks.train.optim.muon import Muon
from lmworks.train.optim.protocol import Optimizer
from lmworks.train.optim.sgd import SGD


def build_optimizer(
    config: AdamWConfig | SGDConfig | MuonConfig,
    named_parameters: Iterable[tuple[str, Parameter]],
) -> Optimizer:
    """The optimizer that `config.kind` names, over the trainable ones of `named_parameters`."""
    match config:
        case AdamWConfig():
            return AdamW(named_parameters, config)
        case SGDConfig():
            return SGD(named_parameters, config)
        case MuonConfig():
            return Muon(named_parameters, config)
