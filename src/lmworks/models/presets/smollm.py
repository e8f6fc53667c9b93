"""SmolLM2 (Allal et al. 2025, arXiv 2502.02737), from HuggingFaceTB/SmolLM2-*/config.json."""

from typing import Any

from lmworks.models.presets.llama import llama_like


def _smollm2(
    d_model: int, num_layers: int, heads: tuple[int, int], d_ff: int, *, theta: float
) -> dict[str, Any]:
    return llama_like(
        d_model,
        num_layers,
        vocab_size=49152,
        max_seq_len=8192,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        d_ff=d_ff,
        theta=theta,
        tie_embeddings=True,
    )


SMOLLM: dict[str, dict[str, Any]] = {
    "smollm2-135m": _smollm2(576, 30, (9, 3), 1536, theta=100000.0),
    "smollm2-360m": _smollm2(960, 32, (15, 5), 2560, theta=100000.0),
    "smollm2-1.7b": _smollm2(2048, 24, (32, 32), 8192, theta=130000.0),
}
