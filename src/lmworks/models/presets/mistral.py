"""Mistral 7B (Jiang et al. 2023, arXiv 2310.06825), from
mistralai/*/config.json."""

from typing import Any

from lmworks.models.presets.llama import llama_like


def _mistral(*, vocab_size: int, theta: float) -> dict[str, Any]:
    return llama_like(
        4096,
        32,
        vocab_size=vocab_size,
        max_seq_len=32768,
        num_heads=32,
        num_kv_heads=8,
        d_ff=14336,
        theta=theta,
    )


MISTRAL: dict[str, dict[str, Any]] = {
    "mistral-7b-v0.3": _mistral(vocab_size=32768, theta=1000000.0),
}
