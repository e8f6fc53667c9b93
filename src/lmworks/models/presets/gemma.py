"""Gemma 2 (Gemma team 2024, arXiv 2408.00118) and the text part of Gemma 3 (2025, 2503.19786), from
google/*/config.json.

Both norm what goes into and what comes out of each half of a block, store norm weights as offset
from one, multiply the embedding by sqrt(d_model), have heads that do not add up to d_model, and
let most layers see a window only. Gemma 2 caps scores and logits; Gemma 3 norms queries and keys
instead and turns them by another theta in windowed layers.
"""

import math
from typing import Any


def _gemma(
    d_model: int,
    num_layers: int,
    *,
    vocab_size: int,
    max_seq_len: int,
    d_ff: int,
    attention: dict[str, Any],
    window: int,
) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "max_seq_len": max_seq_len,
        "d_model": d_model,
        "num_layers": num_layers,
        "norm": {"kind": "rmsnorm", "eps": 1e-6, "unit_offset": True},
        "norm_position": "double",
        "embedding_scale": math.sqrt(d_model),
        "attention": attention,
        "mlp": {"activation": "geglu_tanh", "d_ff": d_ff},
        "position": {"kind": "rope", "theta": 10000.0},
        "layer_kinds": {
            "local": {"attention": {"mask": {"kind": "window", "size": window}}},
            "global": {},
        },
        "tie_embeddings": True,
    }


def _gemma2(
    d_model: int, num_layers: int, heads: tuple[int, int, int], d_ff: int, *, score_divisor: int
) -> dict[str, Any]:
    """`heads`: query heads, key-value heads, head_dim; `score_divisor`: query_pre_attn_scalar."""
    values = _gemma(
        d_model,
        num_layers,
        vocab_size=256000,
        max_seq_len=8192,
        d_ff=d_ff,
        attention=_attention(heads, score_divisor) | {"logit_softcap": 50.0},
        window=4096,
    )
    return values | {"layer_pattern": ["local", "global"], "logit_softcap": 30.0}


def _gemma3(
    d_model: int,
    num_layers: int,
    heads: tuple[int, int, int],
    d_ff: int,
    *,
    score_divisor: int = 256,
    is_large: bool = True,
) -> dict[str, Any]:
    """From 4B on ("large") the vocabulary has room for images and the context was extended."""
    values = _gemma(
        d_model,
        num_layers,
        vocab_size=262208 if is_large else 262144,
        max_seq_len=131072 if is_large else 32768,
        d_ff=d_ff,
        attention=_attention(heads, score_divisor) | {"qk_norm": True},
        window=1024 if is_large else 512,
    )
    values["position"]["theta"] = 1000000.0
    local_position: dict[str, Any] = {"theta": 10000.0}
    if is_large:
        values["position"]["scaling"] = {"kind": "linear", "factor": 8.0}
        local_position["scaling"] = {"kind": "none"}
    values["layer_kinds"]["local"]["position"] = local_position
    return values | {"layer_pattern": ["local*5", "global"]}


def _attention(heads: tuple[int, int, int], score_divisor: int) -> dict[str, Any]:
    num_heads, num_kv_heads, head_dim = heads
    return {
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "scale": score_divisor**-0.5,
    }


GEMMA: dict[str, dict[str, Any]] = {
    "gemma2-2b": _gemma2(2304, 26, (8, 4, 256), 9216, score_divisor=256),
    "gemma2-9b": _gemma2(3584, 42, (16, 8, 256), 14336, score_divisor=256),
    "gemma2-27b": _gemma2(4608, 46, (32, 16, 128), 36864, score_divisor=144),
    "gemma3-270m": _gemma3(640, 18, (4, 1, 256), 2048, is_large=False),
    "gemma3-1b": _gemma3(1152, 26, (4, 1, 256), 6912, is_large=False),
    "gemma3-4b": _gemma3(2560, 34, (8, 4, 256), 10240),
    "gemma3-12b": _gemma3(3840, 48, (16, 8, 256), 15360),
    "gemma3-27b": _gemma3(5376, 62, (32, 16, 128), 21504, score_divisor=168),
}
