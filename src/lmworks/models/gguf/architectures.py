"""What each architecture of GGUF means: its pairs to a model config and back.

The pairs are those that llama.cpp reads and its converters write; what llama.cpp decides by the
name of the architecture (activation, where norms stand, which layers see a window) is decided here
in the same way. Mistral is `llama`, Mixtral is `llama` with experts.

Writers need not look whether a config is theirs: what they write is read again, and the
architecture is taken that gives back the same model (save.py).
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from lmworks.models.config import ModelConfig
from lmworks.models.gguf.deepseek import read_deepseek2, write_deepseek2
from lmworks.models.gguf.experts import read_experts, write_experts
from lmworks.models.gguf.gemma import read_gemma2, read_gemma3, write_gemma2, write_gemma3
from lmworks.models.gguf.metadata import Metadata
from lmworks.models.gguf.sizes import (
    Pairs,
    Values,
    has_bias,
    read_rms_decoder,
    read_sizes,
    write_rms_decoder,
    write_sizes,
)

_LAYER_EPS: Final = "attention.layer_norm_epsilon"


class Architecture(NamedTuple):
    """How a config is read and written; keys are without the architecture in front."""

    read: Callable[[Metadata], Values]
    """Values of a ModelConfig."""
    write: Callable[[ModelConfig], Pairs]
    """Pairs of a config that this architecture may be able to say."""
    has_paired_rows: bool = False
    """In q and k the two elements of a rotated pair stand side by side, not half a head apart."""


# ---- llama, qwen2, qwen3 ----


def _read_llama(meta: Metadata) -> Values:
    values = read_rms_decoder(meta)
    values["use_bias"] = has_bias(meta, "attn_output")
    return values | read_experts(meta, values["mlp"]["d_ff"])


def _read_qwen2(meta: Metadata) -> Values:
    values = read_rms_decoder(meta)
    values["attention"]["qkv_bias"] = has_bias(meta, "attn_q")
    return values


def _read_qwen3(meta: Metadata) -> Values:
    values = read_rms_decoder(meta)
    values["attention"]["qk_norm"] = True
    return values


def _read_qwen3moe(meta: Metadata) -> Values:
    values = _read_qwen3(meta)
    return values | read_experts(meta, meta.whole("expert_feed_forward_length", at_least=1))


def _write_llama(config: ModelConfig) -> Pairs:
    return write_rms_decoder(config) | write_experts(config, "feed_forward_length")


def _write_qwen3moe(config: ModelConfig) -> Pairs:
    experts = write_experts(config, "expert_feed_forward_length")
    return write_rms_decoder(config) | experts


# ---- gpt2 ----


def _read_gpt2(meta: Metadata) -> Values:
    values = read_sizes(meta)
    values["mlp"]["activation"] = "gelu_tanh"
    return values | {
        "norm": {"kind": "layernorm", "eps": meta.number(_LAYER_EPS)},
        "use_bias": True,
        "position": {"kind": "learned"},
    }


def _write_gpt2(config: ModelConfig) -> Pairs:
    return write_sizes(config) | {_LAYER_EPS: float(config.norm.eps)}


# ---- olmo2 ----


def _read_olmo2(meta: Metadata) -> Values:
    values = read_rms_decoder(meta)
    values["attention"] |= {"qk_norm": True, "qk_norm_scope": "full"}
    values["norm_position"] = "reordered"
    return values


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(_read_llama, _write_llama, has_paired_rows=True),
    "qwen2": Architecture(_read_qwen2, write_rms_decoder),
    "qwen3": Architecture(_read_qwen3, write_rms_decoder),
    "qwen3moe": Architecture(_read_qwen3moe, _write_qwen3moe),
    "gpt2": Architecture(_read_gpt2, _write_gpt2),
    "olmo2": Architecture(_read_olmo2, write_rms_decoder),
    "gemma2": Architecture(read_gemma2, write_gemma2),
    "gemma3": Architecture(read_gemma3, write_gemma3),
    "deepseek2": Architecture(read_deepseek2, write_deepseek2),
}
