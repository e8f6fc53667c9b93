"""Names of tensors in GGUF, and where each weight of a config lies in the file.

llama.cpp's names say what a tensor is for (gguf-py, tensor_mapping.py); which of ours it is follows
from the config and, for a few, from the architecture.
"""

import re
from collections.abc import Iterable
from typing import Final

from lmworks.models.config import LayerConfig, ModelConfig
from lmworks.models.gguf.architectures import ARCHITECTURES
from lmworks.models.gguf.places import Offset, Paired, Place, Plain, Rows
from lmworks.nn.config import AttentionConfig, RopeConfig

_OUTSIDE: Final = {
    "embed": "token_embd",
    "position": "position_embd",
    "norm": "output_norm",
    "head": "output",
}
_IN_BLOCK: Final = {
    "attention_norm": "attn_norm",
    "attention_out_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "mlp_out_norm": "post_ffw_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.o": "attn_output",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}
_QKV: Final = ("attention.q", "attention.k", "attention.v")
_BLOCK: Final = re.compile(r"layers\.(\d+)\.(.+)")


def places(config: ModelConfig, architecture: str, tensors: Iterable[str] = ()) -> dict[str, Place]:
    """Where each weight of `config` is, by our names and in the model's order.

    `tensors` are the names in a file: they decide where files of one architecture differ.
    A weight that the architecture has no place for is left out.
    """
    found: dict[str, Place] = {}
    layers = list(config.layers())
    for name in config.weight_shapes():
        match = _BLOCK.fullmatch(name)
        stem, _, part = (match[2] if match else name).rpartition(".")
        if match is None:
            theirs = _OUTSIDE.get(stem)
            place: Place | None = Plain(f"{theirs}.{part}") if theirs else None
        else:
            layer = layers[int(match[1])]
            place = _in_block(f"blk.{match[1]}.", stem, part, layer, architecture)
        if place is not None:
            is_offset = config.norm.unit_offset and "norm" in stem
            found[name] = Offset(*place.names) if is_offset else place
    return found


def _in_block(
    prefix: str, stem: str, part: str, layer: LayerConfig, architecture: str
) -> Place | None:
    attention, position = layer.attention, layer.position
    if isinstance(attention, AttentionConfig) and stem in _QKV:
        num_heads = attention.num_heads if stem == "attention.q" else attention.num_kv_heads
        if architecture == "gpt2":
            return _fused_rows(f"{prefix}attn_qkv.{part}", stem, attention)
        is_half = isinstance(position, RopeConfig) and position.pairing == "half"
        if ARCHITECTURES[architecture].has_paired_rows and is_half and stem != "attention.v":
            return Paired(f"{prefix}{_IN_BLOCK[stem]}.{part}", num_heads)
    return Plain(f"{prefix}{_IN_BLOCK[stem]}.{part}") if stem in _IN_BLOCK else None


def _fused_rows(name: str, stem: str, attention: AttentionConfig) -> Rows:
    """Queries, keys and values one below the other."""
    sizes = (attention.d_query, attention.d_kv, attention.d_kv)
    index = _QKV.index(stem)
    first = sum(sizes[:index])
    return Rows(name, first, first + sizes[index], sum(sizes))
