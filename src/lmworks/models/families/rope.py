"""Rotary positions in a config.json: `rope_theta` and `rope_scaling`, or newer `rope_parameters`.

transformers 5 writes `rope_parameters: {rope_theta, rope_type, factor, ...}` (Gemma 3: one per kind
of layer) and reads both; 4 reads `rope_theta` and `rope_scaling` only. So both are read here, and
the older is written.
"""

from typing import Any

from lmworks.models.families.fields import Fields
from lmworks.nn.config import PositionConfig, RopeConfig
from lmworks.nn.config.rope_scaling import (
    LinearScalingConfig,
    Llama3ScalingConfig,
    YarnScalingConfig,
    yarn_mscale,
)


def read_rope(
    fields: Fields, *, max_seq_len: int, default_theta: float, layer_type: str = ""
) -> dict[str, Any]:
    """Values of a RopeConfig. `layer_type` picks one of several `rope_parameters`."""
    theta = fields.number("rope_theta", default_theta)
    params = _parameters(fields, layer_type)
    theta = params.number("rope_theta", theta)
    kind = params.text("rope_type", params.text("type", "default"))
    params.raw("type")
    params.refuse_unless("partial_rotary_factor", 1.0, 1)
    fields.refuse_unless("partial_rotary_factor", 1.0, 1)
    scaling = _read_scaling(kind, fields, params, max_seq_len)
    params.finish_strictly()
    return {"kind": "rope", "theta": theta, "scaling": scaling}


def write_rope(position: PositionConfig) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling`, as all versions read them."""
    if not isinstance(position, RopeConfig):
        return {}
    return {"rope_theta": position.theta, "rope_scaling": _write_scaling(position.scaling)}


def score_scale(fields: Fields) -> float:
    """Factor of attention scores that DeepSeek adds where YaRN is on: mscale squared."""
    params = _parameters(fields, "")
    if params.text("rope_type", params.text("type", "default")) == "default":
        return 1.0
    weight, factor = params.number("mscale_all_dim", 0.0), params.number("factor", 1.0)
    return yarn_mscale(factor, weight) ** 2 if weight and factor > 1 else 1.0


def _parameters(fields: Fields, layer_type: str) -> Fields:
    fields.raw("rope_theta")
    new, old = fields.section("rope_parameters"), fields.section("rope_scaling")
    if not fields.has("rope_parameters"):
        return old
    if layer_type and new.has(layer_type):
        return new.section(layer_type)
    return new


def _read_scaling(kind: str, fields: Fields, params: Fields, max_seq_len: int) -> dict[str, Any]:
    original = params.count(
        "original_max_position_embeddings",
        fields.raw("original_max_position_embeddings", max_seq_len),
    )
    if kind == "default":
        params.raw("factor")
        return {"kind": "none"}
    if kind == "linear":
        return {"kind": "linear", "factor": params.number("factor")}
    if kind == "llama3":
        return {
            "kind": "llama3",
            "factor": params.number("factor"),
            "low_freq_factor": params.number("low_freq_factor"),
            "high_freq_factor": params.number("high_freq_factor"),
            "original_max_seq_len": original,
        }
    if kind == "yarn":
        return _read_yarn(params, original, max_seq_len)
    raise params.error("rope_type", kind, "default, linear, llama3 or yarn")


def _read_yarn(params: Fields, original: int, max_seq_len: int) -> dict[str, Any]:
    factor = params.number("factor", max_seq_len / original)
    if factor < 1:
        raise params.error("factor", factor, "at least 1")
    mscale, all_dim = params.number("mscale", 0.0), params.number("mscale_all_dim", 0.0)
    ratio = yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim) if mscale and all_dim else 0
    return {
        "kind": "yarn",
        "factor": factor,
        "original_max_seq_len": original,
        "beta_fast": params.number("beta_fast", 32.0),
        "beta_slow": params.number("beta_slow", 1.0),
        "attention_factor": params.number("attention_factor", ratio),
        "truncate": params.flag("truncate", True),
    }


def _write_scaling(scaling: Any) -> dict[str, Any] | None:
    if isinstance(scaling, LinearScalingConfig):
        return {"rope_type": "linear", "type": "linear", "factor": scaling.factor}
    if isinstance(scaling, Llama3ScalingConfig):
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_seq_len,
        }
    if isinstance(scaling, YarnScalingConfig):
        values: dict[str, Any] = {
            "rope_type": "yarn",
            "type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_max_seq_len,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
        }
        if scaling.attention_factor:
            values["attention_factor"] = scaling.attention_factor
        return values if scaling.truncate else values | {"truncate": False}
    return None
