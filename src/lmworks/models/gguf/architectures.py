"""What each architecture of GGUF means: its pairs to a model config and back.

The pairs are those that llama.cpp reads and its converters write; what llama.cpp decides by the
name of the architecture (activation, where norms stand, which layers see a window) is decided here
in the same way. Mistral is `llama`, Mixtral is `llama` with experts.

Writers need not look whether a config is theirs: what they write is read again, and the
architecture is taken that gives back the same model (save.py).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from lmworks.base.errors import CheckpointError
from lmworks.models.config import LayerConfig, ModelConfig
from lmworks.models.gguf.metadata import Metadata
from lmworks.models.gguf.rope import read_rope, write_rope
from lmworks.nn.config import AttentionConfig, MLPConfig, RopeConfig, WindowMaskConfig
from lmworks.tokenizer.gguf_metadata import Value

Values = dict[str, Any]
Pairs = dict[str, Value]
_RMS_EPS, _LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_WINDOW, _WINDOW_PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_GEMMA_LOCAL_THETA: Final = 10000.0


class Architecture(NamedTuple):
    """How a config is read and written; keys are without the architecture in front."""

    read: Callable[[Metadata], Values]
    """Values of a ModelConfig."""
    write: Callable[[ModelConfig], Pairs]
    """Pairs of a config that this architecture may be able to say."""
    has_paired_rows: bool = False
    """In q and k the two elements of a rotated pair stand side by side, not half a head apart."""


# ---- what architectures share ----


def _sizes(meta: Metadata) -> Values:
    embedding = meta.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError("no token_embd.weight of two dims: not a language model")
    meta.expect("attention.causal", True)
    d_model = meta.whole("embedding_length", at_least=1)
    num_heads = meta.whole("attention.head_count", at_least=1)
    num_layers = meta.whole("block_count", at_least=1)
    # Now, because a list of the layers of a forged number could take all memory.
    if num_layers > len(meta.tensors):
        raise CheckpointError(
            f"block_count={num_layers}, but there are only {len(meta.tensors)} tensors"
        )
    return {
        "vocab_size": embedding.shape[0],
        "max_seq_len": meta.whole("context_length", at_least=1),
        "d_model": d_model,
        "num_layers": num_layers,
        "attention": {
            "num_heads": num_heads,
            "num_kv_heads": meta.whole("attention.head_count_kv", num_heads, at_least=1),
            "head_dim": meta.whole("attention.key_length", d_model // num_heads, at_least=1),
        },
        "mlp": {"activation": "swiglu", "d_ff": meta.whole("feed_forward_length", at_least=1)},
        "tie_embeddings": "output.weight" not in meta.tensors,
    }


def _rms_decoder(meta: Metadata) -> Values:
    """RMSNorm, rotary positions over whole heads."""
    values = _sizes(meta)
    head_dim = values["attention"]["head_dim"]
    meta.expect("attention.value_length", head_dim)
    meta.expect("rope.dimension_count", head_dim)
    return values | {
        "norm": {"kind": "rmsnorm", "eps": meta.number(_RMS_EPS)},
        "position": read_rope(meta, head_dim),
    }


def _write_sizes(config: ModelConfig) -> Pairs:
    attention, mlp = config.attention, config.mlp
    pairs: Pairs = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_seq_len,
        "embedding_length": config.d_model,
        "block_count": config.num_layers,
    }
    if isinstance(mlp, MLPConfig):
        pairs["feed_forward_length"] = mlp.d_ff
    if isinstance(attention, AttentionConfig):
        pairs["attention.head_count"] = attention.num_heads
        pairs["attention.head_count_kv"] = attention.num_kv_heads
    return pairs


def _write_rms_decoder(config: ModelConfig) -> Pairs:
    pairs = _write_sizes(config) | {_RMS_EPS: float(config.norm.eps)}
    if isinstance(config.attention, AttentionConfig):
        head_dim = config.attention.head_dim
        pairs |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
        if isinstance(config.position, RopeConfig):
            pairs |= write_rope(config.position, head_dim)
    return pairs


def _has_bias(meta: Metadata, stem: str) -> bool:
    return f"blk.0.{stem}.bias" in meta.tensors


# ---- llama, qwen2, qwen3 ----


def _read_llama(meta: Metadata) -> Values:
    values = _rms_decoder(meta)
    values["use_bias"] = _has_bias(meta, "attn_output")
    return values


def _read_qwen2(meta: Metadata) -> Values:
    values = _rms_decoder(meta)
    values["attention"]["qkv_bias"] = _has_bias(meta, "attn_q")
    return values


def _read_qwen3(meta: Metadata) -> Values:
    values = _rms_decoder(meta)
    values["attention"]["qk_norm"] = True
    return values


# ---- gpt2 ----


def _read_gpt2(meta: Metadata) -> Values:
    values = _sizes(meta)
    values["mlp"]["activation"] = "gelu_tanh"
    return values | {
        "norm": {"kind": "layernorm", "eps": meta.number(_LAYER_EPS)},
        "use_bias": True,
        "position": {"kind": "learned"},
    }


def _write_gpt2(config: ModelConfig) -> Pairs:
    return _write_sizes(config) | {_LAYER_EPS: float(config.norm.eps)}


# ---- olmo2 ----


def _read_olmo2(meta: Metadata) -> Values:
    values = _rms_decoder(meta)
    values["attention"] |= {"qk_norm": True, "qk_norm_scope": "full"}
    values["norm_position"] = "reordered"
    return values


# ---- gemma2, gemma3 ----


def _gemma(meta: Metadata) -> Values:
    """What both have: offset norms on both sides, GeGLU, a scaled embedding that is the head."""
    values = _rms_decoder(meta)
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


def _read_gemma2(meta: Metadata) -> Values:
    values = _gemma(meta)
    values["attention"]["logit_softcap"] = meta.number("attn_logit_softcapping", 50.0)
    values["attention"]["scale"] = _largest_gemma_scale(values, 46)
    values["logit_softcap"] = meta.number("final_logit_softcapping", 30.0)
    window = meta.whole(_WINDOW, 4096, at_least=1)
    return values | _local_and_global(meta, window, period=2, position={})


def _read_gemma3(meta: Metadata) -> Values:
    values = _gemma(meta)
    values["attention"] |= {"qk_norm": True, "scale": _largest_gemma_scale(values, 62)}
    window = meta.whole(_WINDOW, 0)
    if not window:
        return values
    local: Values = {
        "theta": meta.number("rope.freq_base_swa", _GEMMA_LOCAL_THETA),
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
    pairs = _write_rms_decoder(config)
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
            elif layer.position.theta != _GEMMA_LOCAL_THETA:
                pairs["rope.freq_base_swa"] = float(layer.position.theta)
    return pairs


def _window_of(layer: LayerConfig) -> int:
    """Tokens that a layer sees; 0 is all."""
    attention = layer.attention
    mask = attention.mask if isinstance(attention, AttentionConfig) else None
    return mask.size if isinstance(mask, WindowMaskConfig) else 0


def _write_gemma2(config: ModelConfig) -> Pairs:
    pairs = _write_gemma(config, period=2)
    if isinstance(config.attention, AttentionConfig):
        pairs["attn_logit_softcapping"] = float(config.attention.logit_softcap)
    return pairs


def _write_gemma3(config: ModelConfig) -> Pairs:
    return _write_gemma(config, period=6)


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(_read_llama, _write_rms_decoder, has_paired_rows=True),
    "qwen2": Architecture(_read_qwen2, _write_rms_decoder),
    "qwen3": Architecture(_read_qwen3, _write_rms_decoder),
    "gpt2": Architecture(_read_gpt2, _write_gpt2),
    "olmo2": Architecture(_read_olmo2, _write_rms_decoder),
    "gemma2": Architecture(_read_gemma2, _write_gemma2),
    "gemma3": Architecture(_read_gemma3, _write_gemma3),
}
