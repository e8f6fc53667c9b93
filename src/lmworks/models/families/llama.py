"""Llama (1, 2, 3), and what is one by another name: SmolLM2, TinyLlama, Yi, ...

Also Mistral (a window in all layers), Qwen 2 (biases of q, k, v) and Qwen 3 (query-key norm, free
head size). Keys: transformers' configuration classes of the same names.
"""

from collections.abc import Collection

from lmworks.models.config import ModelConfig
from lmworks.models.families.common import (
    FULL,
    LLAMA_NAMES,
    QK_NORM_NAMES,
    WINDOW,
    read_llama_like,
    read_windows,
    table_pieces,
    window,
    window_sizes,
    write_llama_like,
    write_windows,
)
from lmworks.models.families.family import Family, Values
from lmworks.models.families.fields import Fields


def _read_llama(fields: Fields, there: Collection[str]) -> Values:
    # A bias in attention alone, or in the MLP alone, is nothing that we have.
    has_bias = fields.flag("attention_bias", False)
    if fields.flag("mlp_bias", False) != has_bias:
        raise fields.error("attention_bias", has_bias, "equal to mlp_bias")
    fields.refuse_unless("rope_interleaved", False)
    fields.refuse_unless("is_llama_config", True)
    values = read_llama_like(fields, default_eps=1e-6, default_kv_heads=True)
    return values | {"use_bias": has_bias}


def _write_llama(config: ModelConfig) -> Values:
    biases = {"attention_bias": config.use_bias, "mlp_bias": config.use_bias}
    return write_llama_like(config) | biases


def _read_mistral(fields: Fields, there: Collection[str]) -> Values:
    values = read_llama_like(fields, default_eps=1e-6)
    if fields.has("sliding_window"):
        values["attention"] |= window(fields.count("sliding_window"))
    return values


def _write_mistral(config: ModelConfig) -> Values:
    return write_llama_like(config) | {"sliding_window": window_sizes(config)[0]}


def _read_qwen_windows(fields: Fields, num_layers: int) -> Values:
    """Qwen's first `max_window_layers` see everything, the rest a window, if windows are on."""
    types = fields.texts("layer_types", num_layers, (FULL, WINDOW))
    first = fields.size("max_window_layers", 28)
    size = fields.count("sliding_window", 4096)
    if not fields.flag("use_sliding_window", False):
        if types is not None and WINDOW in types:
            raise fields.error("use_sliding_window", False, f"true, as layer_types has {WINDOW}")
        return {}
    if types is None:
        types = [FULL if layer < first else WINDOW for layer in range(num_layers)]
    return read_windows(fields, types, size)


def _write_qwen_windows(config: ModelConfig) -> Values:
    windows = write_windows(config)
    types = windows["layer_types"]
    first = types.index(WINDOW) if WINDOW in types else config.num_layers
    return windows | {"use_sliding_window": WINDOW in types, "max_window_layers": first}


def _read_qwen2(fields: Fields, there: Collection[str]) -> Values:
    values = read_llama_like(fields, default_eps=1e-6)
    values["attention"]["qkv_bias"] = True
    return values | _read_qwen_windows(fields, values["num_layers"])


def _write_qwen2(config: ModelConfig) -> Values:
    return write_llama_like(config) | _write_qwen_windows(config)


def _read_qwen3_dense(fields: Fields, there: Collection[str]) -> Values:
    return read_qwen3(fields, head_dim=128)


def read_qwen3(fields: Fields, *, head_dim: int) -> Values:
    """Dense Qwen 3; the sparse one adds experts. `head_dim` is as in `read_heads`."""
    fields.refuse_unless("attention_bias", False)
    values = read_llama_like(fields, default_eps=1e-6, head_dim=head_dim)
    values["attention"]["qk_norm"] = True
    return values | _read_qwen_windows(fields, values["num_layers"])


def _write_qwen3(config: ModelConfig) -> Values:
    return write_llama_like(config) | _write_qwen_windows(config) | {"attention_bias": False}


LLAMA = Family("llama", "LlamaForCausalLM", _read_llama, _write_llama, table_pieces(LLAMA_NAMES))
MISTRAL = Family(
    "mistral", "MistralForCausalLM", _read_mistral, _write_mistral, table_pieces(LLAMA_NAMES)
)
QWEN2 = Family("qwen2", "Qwen2ForCausalLM", _read_qwen2, _write_qwen2, table_pieces(LLAMA_NAMES))
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    _read_qwen3_dense,
    _write_qwen3,
    table_pieces(LLAMA_NAMES | QK_NORM_NAMES),
)
