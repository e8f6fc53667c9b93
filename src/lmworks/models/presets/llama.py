"""Llama 1 to 3.3 (Touvron et al. 2023, arXiv 2302.13971 and 2307.09288; Llama team 2024,
2407.21783), from meta-llama/*/config.json. RMSNorm, SwiGLU, RoPE, no biases."""

from typing import Any


def llama_like(
    d_model: int,
    num_layers: int,
    *,
    vocab_size: int,
    max_seq_len: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    theta: float = 10000.0,
    eps: float = 1e-5,
    tie_embeddings: bool = False,
) -> dict[str, Any]:
    """The block that most later models start from."""
    return {
        "vocab_size": vocab_size,
        "max_seq_len": max_seq_len,
        "d_model": d_model,
        "num_layers": num_layers,
        "norm": {"kind": "rmsnorm", "eps": eps},
        "attention": {"num_heads": num_heads, "num_kv_heads": num_kv_heads},
        "mlp": {"d_ff": d_ff},
        "position": {"kind": "rope", "theta": theta},
        "tie_embeddings": tie_embeddings,
    }


def _llama2(d_model: int, num_layers: int, heads: tuple[int, int], d_ff: int) -> dict[str, Any]:
    return llama_like(
        d_model,
        num_layers,
        vocab_size=32000,
        max_seq_len=4096,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        d_ff=d_ff,
    )


def _llama3(
    d_model: int,
    num_layers: int,
    heads: tuple[int, int],
    d_ff: int,
    *,
    factor: float = 1.0,
    tie_embeddings: bool = False,
) -> dict[str, Any]:
    """Llama 3, or with a `factor` of its RoPE scaling 3.1 and later, whose context is longer."""
    values = llama_like(
        d_model,
        num_layers,
        vocab_size=128256,
        max_seq_len=8192 if factor == 1.0 else 131072,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        d_ff=d_ff,
        theta=500000.0,
        tie_embeddings=tie_embeddings,
    )
    if factor != 1.0:
        values["position"]["scaling"] = {"kind": "llama3", "factor": factor}
    return values


LLAMA: dict[str, dict[str, Any]] = {
    # Llama 1, table 2.
    "llama-7b": _llama2(4096, 32, (32, 32), 11008)
    | {"max_seq_len": 2048, "norm": {"kind": "rmsnorm", "eps": 1e-6}},
    "llama2-7b": _llama2(4096, 32, (32, 32), 11008),
    "llama2-13b": _llama2(5120, 40, (40, 40), 13824),
    "llama2-70b": _llama2(8192, 80, (64, 8), 28672),
    "llama3-8b": _llama3(4096, 32, (32, 8), 14336),
    "llama3-70b": _llama3(8192, 80, (64, 8), 28672),
    "llama3.1-8b": _llama3(4096, 32, (32, 8), 14336, factor=8.0),
    # Llama 3.3 70B is of this shape, too.
    "llama3.1-70b": _llama3(8192, 80, (64, 8), 28672, factor=8.0),
    "llama3.1-405b": _llama3(16384, 126, (128, 8), 53248, factor=8.0),
    "llama3.2-1b": _llama3(2048, 16, (32, 8), 8192, factor=32.0, tie_embeddings=True),
    "llama3.2-3b": _llama3(3072, 28, (24, 8), 8192, factor=32.0, tie_embeddings=True),
}
