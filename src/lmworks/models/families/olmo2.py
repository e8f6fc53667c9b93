"""OLMo 2 (arXiv 2501.00656): norms after attention and MLP only, query-key norm over all heads."""

from collections.abc import Collection
from typing import Final

from lmworks.models.config import ModelConfig
from lmworks.models.families.common import (
    LLAMA_NAMES,
    QK_NORM_NAMES,
    read_llama_like,
    table_pieces,
    write_llama_like,
)
from lmworks.models.families.family import Family, Values
from lmworks.models.families.fields import Fields

_NAMES: Final = (
    LLAMA_NAMES
    | QK_NORM_NAMES
    | {
        "layers.{layer}.attention_out_norm": "model.layers.{layer}.post_attention_layernorm",
        "layers.{layer}.mlp_out_norm": "model.layers.{layer}.post_feedforward_layernorm",
    }
)


def _read(fields: Fields, there: Collection[str]) -> Values:
    fields.refuse_unless("attention_bias", False)
    values = read_llama_like(fields, default_eps=1e-5, default_kv_heads=True)
    values["attention"] |= {"qk_norm": True, "qk_norm_scope": "full"}
    return values | {"norm_position": "reordered"}


def _write(config: ModelConfig) -> Values:
    return write_llama_like(config) | {"attention_bias": False}


OLMO2 = Family("olmo2", "Olmo2ForCausalLM", _read, _write, table_pieces(_NAMES))
