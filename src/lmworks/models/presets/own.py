"""Small models of ours, to try things on, and one from the literature."""

from typing import Any

from lmworks.models.presets.gpt2 import gpt2_like

OWN: dict[str, dict[str, Any]] = {
    # The model of `make demo`: learns recognisable English in minutes on two cores.
    "tiny": {
        "vocab_size": 4096,
        "max_seq_len": 256,
        "d_model": 256,
        "num_layers": 4,
        "attention": {"num_heads": 4},
        "tie_embeddings": True,
    },
    # The reference training shape of benchmarks/: 22.7 M parameters, 17.6 M without the embedding.
    "seed-17m": {
        "vocab_size": 10000,
        "max_seq_len": 256,
        "d_model": 512,
        "num_layers": 4,
        "attention": {"num_heads": 16},
        "mlp": {"d_ff": 1344},
    },
    # The 4-layer, 768-wide model of TinyStories (Eldan & Li 2023, arXiv 2305.07759) with the
    # paper's 10,000 most common tokens and context 512; theirs is GPT-Neo, whose every second
    # layer attends to a window only.
    "tinystories": gpt2_like(
        vocab_size=10000, max_seq_len=512, d_model=768, num_layers=4, num_heads=16
    ),
}
