"""Names of tensors in GGUF, and where each weight of a config lies in the file.

llama.cpp's names say what a tensor is for (gguf-py, tensor_mapping.py); which of ours it is follows
from the config and, for a few, from the architecture.
"""

import re
from collections.abc import Iterable
from typing import Final

from lmworks.models.config import LayerConfig, ModelConfig
from lmworks.models.gguf.architectures import ARCHITECTURES
from lmworks.models.gguf.places import LatentUp, Offset, Paired, Place, Plain, Rows
from lmworks.nn.config import AttentionConfig, MLAConfig, RopeConfig

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
    "attention.q_down": "attn_q_a",
    "attention.q_up": "attn_q_b",
    "attention.kv_down": "attn_kv_a_mqa",
    "attention.kv_norm": "attn_kv_a_norm",
    "attention.kv_up": "attn_kv_b",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared.gate": "ffn_gate_shexp",
    "mlp.shared.up": "ffn_up_shexp",
    "mlp.shared.down": "ffn_down_shexp",
}
# By whole names, which end otherwise here.
_WHOLE: Final = {
    "mlp.router.bias": "exp_probs_b.bias",
    "mlp.experts.gate": "ffn_gate_exps.weight",
    "mlp.experts.up": "ffn_up_exps.weight",
    "mlp.experts.down": "ffn_down_exps.weight",
}
_QKV: Final = {"attn_q": 0, "attn_k": 1, "attn_v": 2}
_BLOCK: Final = re.compile(r"layers\.(\d+)\.(.+)")


def places(config: ModelConfig, architecture: str, tensors: Iterable[str] = ()) -> dict[str, Place]:
    """Where each weight of `config` is, by our names and in the model's order.

    `tensors` are the names in a file: they decide where files of one architecture differ.
    A weight that the architecture has no place for is left out.
    """
    found: dict[str, Place] = {}
    layers, there = list(config.layers()), frozenset(tensors)
    for name in config.weight_shapes():
        match = _BLOCK.fullmatch(name)
        if match is None:
            stem, _, part = name.rpartition(".")
            place: Place | None = Plain(f"{_OUTSIDE[stem]}.{part}") if stem in _OUTSIDE else None
        else:
            prefix = f"blk.{match[1]}."
            place = _in_block(prefix, match[2], layers[int(match[1])], architecture)
            if isinstance(place, LatentUp) and f"{prefix}attn_kv_b.weight" in there:
                place = Plain(f"{prefix}attn_kv_b.weight")  # older files
        if place is not None:
            is_offset = config.norm.unit_offset and "norm" in name
            found[name] = Offset(*place.names) if is_offset else place
    return found


def _in_block(prefix: str, name: str, layer: LayerConfig, architecture: str) -> Place | None:
    if name in _WHOLE:
        return Plain(prefix + _WHOLE[name])
    stem, _, part = name.rpartition(".")
    if stem not in _IN_BLOCK:
        return None
    theirs = f"{prefix}{_IN_BLOCK[stem]}.{part}"
    if isinstance(layer.attention, MLAConfig):
        return _latent(prefix, stem, part, layer.attention) or Plain(theirs)
    if _IN_BLOCK[stem] in _QKV:
        return _heads(prefix, theirs, layer, architecture)
    return Plain(theirs)


def _latent(prefix: str, stem: str, part: str, attention: MLAConfig) -> Place | None:
    """Where latent attention departs from the table."""
    if stem == "attention.q_norm":
        return Plain(f"{prefix}attn_q_a_norm.{part}")
    if stem == "attention.kv_up":
        keys, values = f"{prefix}attn_k_b.{part}", f"{prefix}attn_v_b.{part}"
        return LatentUp(keys, values, attention.num_heads, attention.nope_dim)
    return None


def _heads(prefix: str, theirs: str, layer: LayerConfig, architecture: str) -> Place:
    """Queries, keys or values: one below the other in GPT-2, in pairs of rows in Llama."""
    attention, position = layer.attention, layer.position
    assert isinstance(attention, AttentionConfig), "latent attention has been dealt with"
    which = _QKV[theirs.removeprefix(prefix).partition(".")[0]]
    if architecture == "gpt2":
        sizes = (attention.d_query, attention.d_kv, attention.d_kv)
        first = sum(sizes[:which])
        name = f"{prefix}attn_qkv.{theirs.rpartition('.')[2]}"
        return Rows(name, first, first + sizes[which], sum(sizes))
    is_half = isinstance(position, RopeConfig) and position.pairing == "half"
    if ARCHITECTURES[architecture].has_paired_rows and is_half and which < 2:
        return Paired(theirs, (attention.num_heads, attention.num_kv_heads)[which])
    return Plain(theirs)
