"""OLMo 2 (OLMo team 2025, arXiv 2501.00656, section 3.2), from allenai/OLMo-2-*/config.json.

The norm is on what each half of a block adds, queries and keys are normed over all heads."""

from typing import Any

from lmworks.models.presets.llama import llama_like


def _olmo2(d_model: int, num_layers: int, heads: tuple[int, int], d_ff: int) -> dict[str, Any]:
    values = llama_like(
        d_model,
        num_layers,
        vocab_size=100352,
        max_seq_len=4096,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        d_ff=d_ff,
        theta=500000.0,
        eps=1e-6,
    )
    values["attention"] |= {"qk_norm": True, "qk_norm_scope": "full"}
    return values | {"norm_position": "reordered"}


OLMO: dict[str, dict[str, Any]] = {
    "olmo2-1b": _olmo2(2048, 16, (16, 16), 8192),
    "olmo2-7b": _olmo2(4096, 32, (32, 32), 11008),
    "olmo2-13b": _olmo2(5120, 40, (40, 40), 13824),
    "olmo2-32b": _olmo2(5120, 64, (40, 8), 27648),
}
