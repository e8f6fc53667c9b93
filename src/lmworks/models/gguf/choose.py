"""Which architecture of GGUF computes what a config says, and what its file then holds.

Each architecture's pairs are written and read again; the first that gives back the same model is
taken. So there is no list of conditions that could forget one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from lmworks.base.errors import CheckpointError
from lmworks.models.config import ModelConfig
from lmworks.models.gguf.architectures import ARCHITECTURES
from lmworks.models.gguf.metadata import ShapedTensor
from lmworks.models.gguf.names import places
from lmworks.models.gguf.places import Place, Shape
from lmworks.models.gguf.read import config_of
from lmworks.models.gguf.rope import FACTORS, rope_factors
from lmworks.models.gguf.sizes import Pairs
from lmworks.nn.config import RopeConfig

_TRAINING_ONLY: Final = {"balance", "capacity_factor", "drop"}


def architecture_of(config: ModelConfig) -> tuple[str, Pairs]:
    """The architecture that computes what `config` says, and its pairs.

    Raises:
        CheckpointError: there is none.
    """
    reasons: dict[str, list[str]] = {}
    for architecture, one in ARCHITECTURES.items():
        found = places(config, architecture)
        lacking = [name for name in config.weight_shapes() if name not in found]
        if lacking:
            reasons.setdefault(f"no {lacking[0]}", []).append(architecture)
            continue
        pairs = {f"{architecture}.{key}": value for key, value in one.write(config).items()}
        tensors = {
            name: ShapedTensor(shape) for name, shape in shapes_in_file(config, found).items()
        }
        factors = llama3_factors(config)
        if factors:
            tensors[FACTORS] = ShapedTensor((len(factors),), tuple(factors))
        try:
            same = config_of(_as_in_file(pairs), tensors, architecture)
        except CheckpointError as err:
            reasons.setdefault(str(err), []).append(architecture)
            continue
        difference = _difference(config, same, ignore_pairing=one.has_paired_rows)
        if not difference:
            return architecture, pairs
        reasons.setdefault(difference, []).append(architecture)
    why = "; ".join(f"{reason} in {', '.join(names)}" for reason, names in reasons.items())
    raise CheckpointError(f"no GGUF architecture computes what this model computes: {why}")


def by_tensor(found: Mapping[str, Place]) -> dict[str, list[tuple[str, Place]]]:
    """For each tensor in the file the weights that are in it, in order."""
    tensors: dict[str, list[tuple[str, Place]]] = {}
    for ours, place in found.items():
        for name in place.names:
            tensors.setdefault(name, []).append((ours, place))
    return tensors


def made(
    name: str, members: Sequence[tuple[str, Place]], weight: Callable[[str], Tensor]
) -> Tensor:
    """The tensor `name` from its weights."""
    parts = [place.store(weight(ours))[name] for ours, place in members]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def shapes_in_file(config: ModelConfig, found: Mapping[str, Place]) -> dict[str, Shape]:
    """The shape of each tensor that holds weights of `config`."""
    ours = config.weight_shapes()

    def weight(name: str) -> Tensor:
        return torch.empty(ours[name], device="meta")

    return {n: tuple(made(n, members, weight).shape) for n, members in by_tensor(found).items()}


def llama3_factors(config: ModelConfig) -> list[float]:
    """Llama 3's factors of frequencies, the same for all layers."""
    if not isinstance(config.position, RopeConfig):
        return []
    return rope_factors(config.position, config.attention.rotary_dim)


def _as_in_file(pairs: Pairs) -> Pairs:
    """Numbers as they are when they come back: fp32."""
    return {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in pairs.items()}


def _difference(config: ModelConfig, same: ModelConfig, *, ignore_pairing: bool) -> str:
    """What first differs between two configs in what they compute; empty if nothing does."""
    ours, theirs = (_flat(_essence(c, ignore_pairing=ignore_pairing)) for c in (config, same))
    for key in [*ours, *theirs]:
        one, other = ours.get(key), theirs.get(key)
        if isinstance(one, float) and isinstance(other, float | int):
            if math.isclose(one, other, rel_tol=1e-6):
                continue
        elif one == other:
            continue
        return f"{key} would be {other!r}, not {one!r}"
    return ""


def _essence(config: ModelConfig, *, ignore_pairing: bool) -> dict[str, Any]:
    """All that decides what is computed, layer by layer."""
    values = config.model_dump(
        exclude={"init", "dropout", "attention", "mlp", "position", "layer_kinds", "layer_pattern"}
    )
    values["layers"] = {}
    for index, layer in enumerate(config.layers()):
        attention = layer.attention.model_dump()
        attention["scale"] = layer.attention.scale or layer.attention.head_dim**-0.5
        position = layer.position.model_dump()
        if ignore_pairing:
            position.pop("pairing", None)
        mlp = layer.mlp.model_dump(exclude=_TRAINING_ONLY)
        if mlp.get("router", {}).get("num_groups") == 1:
            mlp["router"] |= {"group_score": "max"}
        values["layers"][index] = {"attention": attention, "mlp": mlp, "position": position}
    return values


def _flat(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
