"""Qwen2 (Yang et al. 2024, arXiv 2407.10671), Qwen2.5 (2412.15115) and Qwen3 (2505.09388), from
Qwen/*/config.json of the base models (Qwen3: of the chat models, whose context is longer).

Qwen2 and 2.5 have biases of queries, keys and values, Qwen3 normalises queries and keys instead.
YaRN, which the cards of the larger ones recommend for long texts, is off as in the files:
`position.scaling: {kind: yarn, factor: 4, original_max_seq_len: 32768}`.
"""

from typing import Any

from lmworks.models.presets.llama import llama_like


def _qwen2(
    d_model: int,
    num_layers: int,
    heads: tuple[int, int],
    d_ff: int,
    *,
    vocab_size: int = 151936,
    max_seq_len: int = 131072,
    eps: float = 1e-6,
    tie_embeddings: bool = False,
) -> dict[str, Any]:
    values = llama_like(
        d_model,
        num_layers,
        vocab_size=vocab_size,
        max_seq_len=max_seq_len,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        d_ff=d_ff,
        theta=1000000.0,
        eps=eps,
        tie_embeddings=tie_embeddings,
    )
    values["attention"]["qkv_bias"] = True
    return values


def _qwen3(
    d_model: int,
    num_layers: int,
    heads: tuple[int, int],
    d_ff: int,
    *,
    tie_embeddings: bool = False,
) -> dict[str, Any]:
    values = llama_like(
        d_model,
        num_layers,
        vocab_size=151936,
        max_seq_len=40960,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        d_ff=d_ff,
        theta=1000000.0,
        eps=1e-6,
        tie_embeddings=tie_embeddings,
    )
    values["attention"] |= {"head_dim": 128, "qk_norm": True}
    return values


def _qwen3_moe(
    d_model: int, num_layers: int, heads: tuple[int, int], expert_d_ff: int
) -> dict[str, Any]:
    """128 experts, 8 per token, their weights normalised."""
    router = {"kind": "topk", "top_k": 8, "score": "softmax", "normalize": True}
    values = _qwen3(d_model, num_layers, heads, expert_d_ff)
    values["mlp"] = {"kind": "moe", "d_ff": expert_d_ff, "num_experts": 128, "router": router}
    return values


QWEN: dict[str, dict[str, Any]] = {
    "qwen2-0.5b": _qwen2(896, 24, (14, 2), 4864, tie_embeddings=True),
    "qwen2-1.5b": _qwen2(1536, 28, (12, 2), 8960, tie_embeddings=True),
    "qwen2-7b": _qwen2(3584, 28, (28, 4), 18944, vocab_size=152064),
    "qwen2-72b": _qwen2(8192, 80, (64, 8), 29568, vocab_size=152064, eps=1e-5),
    "qwen2.5-0.5b": _qwen2(896, 24, (14, 2), 4864, max_seq_len=32768, tie_embeddings=True),
    "qwen2.5-1.5b": _qwen2(1536, 28, (12, 2), 8960, tie_embeddings=True),
    "qwen2.5-3b": _qwen2(2048, 36, (16, 2), 11008, max_seq_len=32768, tie_embeddings=True),
    "qwen2.5-7b": _qwen2(3584, 28, (28, 4), 18944, vocab_size=152064),
    "qwen2.5-14b": _qwen2(5120, 48, (40, 8), 13824, vocab_size=152064, eps=1e-5),
    "qwen2.5-32b": _qwen2(5120, 64, (40, 8), 27648, vocab_size=152064, eps=1e-5),
    "qwen2.5-72b": _qwen2(8192, 80, (64, 8), 29568, vocab_size=152064, eps=1e-5),
    "qwen3-0.6b": _qwen3(1024, 28, (16, 8), 3072, tie_embeddings=True),
    "qwen3-1.7b": _qwen3(2048, 28, (16, 8), 6144, tie_embeddings=True),
    "qwen3-4b": _qwen3(2560, 36, (32, 8), 9728, tie_embeddings=True),
    "qwen3-8b": _qwen3(4096, 36, (32, 8), 12288),
    "qwen3-14b": _qwen3(5120, 40, (40, 8), 17408),
    "qwen3-32b": _qwen3(5120, 64, (64, 8), 25600),
    "qwen3-30b-a3b": _qwen3_moe(2048, 48, (32, 4), 768),
    "qwen3-235b-a22b": _qwen3_moe(4096, 94, (64, 4), 1536),
}
