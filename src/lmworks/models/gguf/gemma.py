"""Gemma 2 and 3 in GGUF: most layers see a window, the last of every few sees all.

Norms are stored as 1 + weight there. What llama.cpp knows by the number of layers (the 27B models
scale scores by the width per head) is known here in the same way.
"""

import math
from typing import Any, Final

from lmworks.base.errors import CheckpointError
from lmworks.models.config import LayerConfig, ModelConfig
from lmworks.models.gguf.metadata import Metadata
from lmworks.models.gguf.rope import write_rope
from lmworks.models.gguf.sizes import Pairs, Values, read_rms_decoder, write_rms_decoder
from lmworks.nn.config import AttentionConfig, RopeConfig, WindowMaskConfig
from lmworks.tokenizer.gguf_metadata import Value

_WINDOW, _WINDOW_PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_LOCAL_THETA: Final = 10000.0


def _gemma(meta: Metadata) -> Values:
    """What both have: offset norms on both sides, GeGLU, a scaled embedding that is the head."""
    values = read_rms_decoder(meta)
    values["norm"]["unit_offset"] = True
    values["mlp"]["activation"] = "geglu_tanh"
    return values | {
        "norm_position": "double",
        "embedding_scale": math.sqrt(values["d_model"]),
        "logit_softcap": meta.number("final_logit_softcapping", 0.0),
    }


def _largest_gemma_scale(values: Values, num_layers: int) -> float:
    """The 27B models scale scores by the width per head, the others by head_dim."""
    if values["num_layers"] != num_layers:
        return 0.0
    return float((values["d_model"] // values["attention"]["num_heads"]) ** -0.5)


def read_gemma2(meta: Metadata) -> Values:
    """Values of a ModelConfig."""
    values = _gemma(meta)
    values["attention"]["logit_softcap"] = meta.number("attn_logit_softcapping", 50.0)
    values["attention"]["scale"] = _largest_gemma_scale(values, 46)
    values["logit_softcap"] = meta.number("final_logit_softcapping", 30.0)
    window = meta.whole(_WINDOW, 4096, at_least=1)
    return values | _local_and_global(meta, window, period=2, position={})


def read_gemma3(meta: Metadata) -> Values:
    """Values of a ModelConfig."""
    values = _gemma(meta)
    values["attention"] |= {"qk_norm": True, "scale": _largest_gemma_scale(values, 62)}
    window = meta.whole(_WINDOW, 0)
    if not window:
        return values
    local: Values = {
        "theta": meta.number("rope.freq_base_swa", _LOCAL_THETA),
        "scaling": {"kind": "none"},
    }
    return values | _local_and_global(meta, window, period=6, position=local)


def _local_and_global(meta: Metadata, window: int, *, period: int, position: Values) -> Values:
    """Layer kinds: the last of every `period` layers sees all, the others see a window."""
    num_layers = meta.whole("block_count")
    is_local = meta.list_or_none(_WINDOW_PATTERN)
    if is_local is None:
        is_local = _is_local(num_layers, meta.whole(_WINDOW_PATTERN, period, at_least=1))
    if len(is_local) != num_layers or not all(isinstance(one, bool) for one in is_local):
        raise CheckpointError(f"{_WINDOW_PATTERN} must be true or false for each layer")
    names = _period(["local" if one else "global" for one in is_local])
    kinds = {
        "local": {
            "attention": {"mask": {"kind": "window", "size": window}},
            "position": position,
        },
        "global": {},
    }
    return {
        "layer_kinds": {name: kinds[name] for name in set(names)},
        "layer_pattern": _shortened(names),
    }


def _is_local(num_layers: int, period: int) -> list[Value]:
    return [layer % period < period - 1 for layer in range(num_layers)]


def _period(names: list[str]) -> list[str]:
    """The shortest start of a list that gives all of it when repeated."""
    for length in range(1, len(names)):
        if all(name == names[i % length] for i, name in enumerate(names)):
            return names[:length]
    return names


def _shortened(names: list[str]) -> list[str]:
    """Runs of one name as name*count."""
    runs: list[list[Any]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1][1] += 1
        else:
            runs.append([name, 1])
    return [name if count == 1 else f"{name}*{count}" for name, count in runs]


def _write_gemma(config: ModelConfig, *, period: int) -> Pairs:
    pairs = write_rms_decoder(config)
    if config.logit_softcap:
        pairs["final_logit_softcapping"] = float(config.logit_softcap)
    sizes = [_window_of(layer) for layer in config.layers()]
    if any(sizes):
        pairs[_WINDOW] = max(sizes)
        is_local: list[Value] = [size > 0 for size in sizes]
        # Old readers know only the architecture's own period.
        if is_local != _is_local(len(sizes), period):
            pairs[_WINDOW_PATTERN] = is_local  # type: ignore[assignment]
    for layer, size in zip(config.layers(), sizes, strict=True):
        if isinstance(layer.position, RopeConfig):
            if not size:
                pairs |= write_rope(layer.position, layer.attention.rotary_dim)
            elif layer.position.theta != _LOCAL_THETA:
                pairs["rope.freq_base_swa"] = float(layer.position.theta)
    return pairs


def _window_of(layer: LayerConfig) -> int:
    """Tokens that a layer sees; 0 is all."""
    attention = layer.attention
    mask = attention.mask if isinstance(attention, AttentionConfig) else None
    return mask.size if isinstance(mask, WindowMaskConfig) else 0


def write_gemma2(config: ModelConfig) -> Pairs:
    """Pairs of a config that may be a Gemma 2."""
    pairs = _write_gemma(config, period=2)
    if isinstance(config.attention, AttentionConfig):
        pairs["attn_logit_softcapping"] = float(config.attention.logit_softcap)
    return pairs


def write_gemma3(config: ModelConfig) -> Pairs:
    """Pairs of a config that may be a Gemma 3."""
    return _write_gemma(config, period=6)
