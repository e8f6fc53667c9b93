"""Known shapes by name, as plain values for `ModelConfig`. No torch.

One file per family, each value as in the published config.json that its comment names; what is not
written there has our default. Sizes that follow from the width (head_dim, gated d_ff) are written
only where the model departs from the rule, so that `preset: tiny` with `d_model: 320` on top stays
consistent. What a preset does not say: tokenizer, training, precision.
"""

import copy
from typing import Any

from lmworks.base.config import suggest
from lmworks.base.errors import ConfigError
from lmworks.models.presets.deepseek import DEEPSEEK
from lmworks.models.presets.gemma import GEMMA
from lmworks.models.presets.gpt2 import GPT2
from lmworks.models.presets.llama import LLAMA
from lmworks.models.presets.mistral import MISTRAL
from lmworks.models.presets.olmo import OLMO
from lmworks.models.presets.own import OWN
from lmworks.models.presets.qwen import QWEN
from lmworks.models.presets.smollm import SMOLLM

_PRESETS: dict[str, dict[str, Any]] = {
    **OWN,
    **GPT2,
    **LLAMA,
    **SMOLLM,
    **MISTRAL,
    **QWEN,
    **GEMMA,
    **OLMO,
    **DEEPSEEK,
}

PRESET_NAMES = tuple(_PRESETS)


def preset_values(name: str) -> dict[str, Any]:
    """Values of the preset `name`; raises ConfigError that lists the known names."""
    if name not in _PRESETS:
        raise ConfigError(f"model.preset={name!r} is not known{suggest(name, _PRESETS)}")
    return copy.deepcopy(_PRESETS[name])
