"""Families of Hugging Face models, one file each: their configs and their names of weights."""

from typing import Any, Final

from lmworks.base.errors import CheckpointError, ConfigError
from lmworks.models.config import ModelConfig
from lmworks.models.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from lmworks.models.families.family import Family, Values
from lmworks.models.families.gemma import GEMMA2, GEMMA3
from lmworks.models.families.gpt2 import GPT2
from lmworks.models.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from lmworks.models.families.moe import MIXTRAL, QWEN3_MOE
from lmworks.models.families.olmo2 import OLMO2

FAMILIES: Final = {
    family.model_type: family
    for family in (
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        GPT2,
        OLMO2,
        GEMMA2,
        GEMMA3,
        MIXTRAL,
        QWEN3_MOE,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
    )
}
"""By `model_type`. The first that can express a model is the one that it is written as."""

__all__ = ["FAMILIES", "Family", "family_for", "family_named"]

_TRAINING_KEYS: Final = ("init", "dropout")
_MOE_TRAINING_KEYS: Final = ("balance", "capacity_factor", "drop")
_LAYER_KEYS: Final = ("attention", "mlp", "position", "layer_kinds", "layer_pattern")
_MAX_DIFFERENCES: Final = 3


def family_named(model_type: Any, *, where: str) -> Family:
    """The family of a config.json; CheckpointError if it is none that we know."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise CheckpointError(
            f"{where}: model_type={model_type!r:.60} is not supported; known: "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[model_type]


def family_for(config: ModelConfig) -> tuple[Family, Values]:
    """The first family that can express `config`, and the config.json that does.

    Raises:
        ConfigError: there is none; names what the nearest one lacks.
    """
    nearest: tuple[int, str, list[str]] | None = None
    wanted = _mathematics(config)
    for family in FAMILIES.values():
        values = family.write(config)
        found = _read_back(family, values)
        if found is None:
            continue
        wrong = [key for key in wanted | found if wanted.get(key) != found.get(key)]
        if not wrong:
            return family, values
        if nearest is None or len(wrong) < nearest[0]:
            lines = [f"{k}={wanted.get(k)!r} (not {found.get(k)!r})" for k in wrong]
            nearest = len(wrong), family.model_type, lines[:_MAX_DIFFERENCES]
    assert nearest is not None, "a family reads what it writes for some model"
    raise ConfigError(
        "no Hugging Face family can express this model; the nearest, "
        f"{nearest[1]}, has no {', '.join(nearest[2])}"
    )


def _read_back(family: Family, values: Values) -> dict[str, Any] | None:
    """What `values` mean to whoever reads them; None if nobody can."""
    try:
        fields = family.fields(values, where="config.json")
        return _mathematics(ModelConfig.model_validate(family.read(fields, ())))
    except (CheckpointError, ValueError):
        return None


def _mathematics(config: ModelConfig) -> dict[str, Any]:
    """Everything that logits depend on, by dotted key, layer by layer."""
    values = config.model_dump(exclude=set(_TRAINING_KEYS + _LAYER_KEYS))
    for index, layer in enumerate(config.layers()):
        for section, own in layer._asdict().items():
            values[f"layers.{index}.{section}"] = own.model_dump(exclude=set(_MOE_TRAINING_KEYS))
        if layer.attention.kind == "gqa" and not layer.attention.scale:
            values[f"layers.{index}.attention"]["scale"] = layer.attention.head_dim**-0.5
    return _flat(values)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        key: leaf
        for name, child in value.items()
        for key, leaf in _flat(child, f"{prefix}.{name}" if prefix else name).items()
    }
