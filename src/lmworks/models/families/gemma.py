"""Gemma 2 (arXiv 2408.00118) and the text model of Gemma 3 (arXiv 2503.19786).

Norms around both halves of a block, stored as offsets from one; a scaled embedding; layers that see
a window between such that see everything. Gemma 2 bounds scores and logits softly; Gemma 3 norms
queries and keys instead, and turns them by another base in layers with a window.
"""

from collections.abc import Collection
from typing import Any, Final

from lmworks.models.config import ModelConfig
from lmworks.models.families.common import (
    FULL,
    LLAMA_NAMES,
    QK_NORM_NAMES,
    WINDOW,
    read_heads,
    read_mlp,
    read_sizes,
    read_windows,
    table_pieces,
    write_llama_like,
    write_windows,
)
from lmworks.models.families.family import Family, Values
from lmworks.models.families.fields import Fields
from lmworks.models.families.rope import read_rope, write_rope

_NAMES: Final = LLAMA_NAMES | {
    "layers.{layer}.attention_out_norm": "model.layers.{layer}.post_attention_layernorm",
    "layers.{layer}.mlp_norm": "model.layers.{layer}.pre_feedforward_layernorm",
    "layers.{layer}.mlp_out_norm": "model.layers.{layer}.post_feedforward_layernorm",
}
_DEFAULTS: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_LOCAL_THETA: Final = 10_000.0


def _read_gemma(fields: Fields) -> Values:
    """What both have; layers and positions are the caller's."""
    fields.refuse_unless("attention_bias", False)
    fields.refuse_unless("use_bidirectional_attention", False)
    fields.raw("hidden_act")  # the older key; transformers computes by hidden_activation
    values = read_sizes(fields, default_eps=1e-6)
    heads = read_heads(fields)
    scalar = fields.number("query_pre_attn_scalar")
    if scalar <= 0:
        raise fields.error("query_pre_attn_scalar", scalar, "above 0")
    return values | {
        "norm": values["norm"] | {"unit_offset": True},
        "norm_position": "double",
        "embedding_scale": values["d_model"] ** 0.5,
        "attention": heads
        | {
            "scale": 0.0 if scalar == heads["head_dim"] else scalar**-0.5,
            "logit_softcap": fields.cap("attn_logit_softcapping"),
        },
        "mlp": read_mlp(fields, key="hidden_activation", default="gelu_pytorch_tanh"),
        "logit_softcap": fields.cap("final_logit_softcapping"),
    }


def _write_gemma(config: ModelConfig) -> Values:
    attention: Any = next(iter(config.layers())).attention
    values = write_llama_like(config)
    activation = values.pop("hidden_act")
    scale = getattr(attention, "scale", 0.0)
    scalar = scale**-2 if scale else getattr(attention, "head_dim", 1)
    # Published ones are whole numbers, and transformers takes no others.
    whole = round(scalar)
    return (
        values
        | write_windows(config)
        | {
            "hidden_activation": activation,
            "query_pre_attn_scalar": whole if whole and scale in (0.0, whole**-0.5) else scalar,
            "attn_logit_softcapping": getattr(attention, "logit_softcap", 0.0) or None,
            "final_logit_softcapping": config.logit_softcap or None,
        }
    )


def _types(fields: Fields, num_layers: int, period: int) -> list[str]:
    """Kinds of the layers, by default: every `period`-th sees everything."""
    types = fields.texts("layer_types", num_layers, (FULL, WINDOW))
    if types is not None:
        return types
    return [FULL if (layer + 1) % period == 0 else WINDOW for layer in range(num_layers)]


def _read_gemma2(fields: Fields, there: Collection[str]) -> Values:
    values = _read_gemma(fields)
    types = _types(fields, values["num_layers"], 2)
    rope = read_rope(fields, max_seq_len=values["max_seq_len"], default_theta=10_000.0)
    return values | {"position": rope} | read_windows(fields, types, fields.count("sliding_window"))


def _read_gemma3(fields: Fields, there: Collection[str]) -> Values:
    values = _read_gemma(fields)
    values["attention"]["qk_norm"] = True
    period = fields.count("sliding_window_pattern", fields.raw("_sliding_window_pattern", 6))
    types = _types(fields, values["num_layers"], period)
    layers = read_windows(fields, types, fields.count("sliding_window"))
    context = values["max_seq_len"]
    local_theta = fields.number("rope_local_base_freq", _LOCAL_THETA)
    rope = read_rope(fields, max_seq_len=context, default_theta=1e6, layer_type=FULL)
    if WINDOW in types:
        local = {"kind": "rope", "theta": local_theta, "scaling": {"kind": "none"}}
        if fields.section("rope_parameters").has(WINDOW):
            local = read_rope(
                fields, max_seq_len=context, default_theta=_LOCAL_THETA, layer_type=WINDOW
            )
        layers["layer_kinds"]["window"]["position"] = local
    return values | {"position": rope} | layers


def _write_gemma3(config: ModelConfig) -> Values:
    values = _write_gemma(config)
    positions = dict(zip(values["layer_types"], config.layers(), strict=True))
    whole = positions.get(FULL)
    rope = (
        {"rope_theta": 1e6, "rope_scaling": None} if whole is None else write_rope(whole.position)
    )
    values |= rope
    if WINDOW in positions:
        local: Any = positions[WINDOW].position
        values["rope_local_base_freq"] = getattr(local, "theta", _LOCAL_THETA)
    return values


GEMMA2 = Family(
    "gemma2",
    "Gemma2ForCausalLM",
    _read_gemma2,
    _write_gemma,
    table_pieces(_NAMES),
    defaults=_DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
)
GEMMA3 = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    _read_gemma3,
    _write_gemma3,
    table_pieces(_NAMES | QK_NORM_NAMES),
    defaults=_DEFAULTS | {"vocab_size": 262_208, "max_position_embeddings": 131_072},
)
