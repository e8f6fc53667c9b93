"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2).

Dropout is off as in every later single-epoch pretraining; the original used 0.1.
"""

from typing import Any


def gpt2_like(
    *, vocab_size: int, max_seq_len: int, d_model: int, num_layers: int, num_heads: int
) -> dict[str, Any]:
    """LayerNorm, biases, GELU, learned positions, tied head."""
    return {
        "vocab_size": vocab_size,
        "max_seq_len": max_seq_len,
        "d_model": d_model,
        "num_layers": num_layers,
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "use_bias": True,
        "attention": {"num_heads": num_heads},
        "mlp": {"activation": "gelu_tanh"},
        "position": {"kind": "learned"},
        "tie_embeddings": True,
    }


def _gpt2(d_model: int, num_layers: int, num_heads: int) -> dict[str, Any]:
    return gpt2_like(
        vocab_size=50257,
        max_seq_len=1024,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
    )


GPT2: dict[str, dict[str, Any]] = {
    "gpt2-small": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
}
