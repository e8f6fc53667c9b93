"""Known shapes by name, as plain values for `ModelConfig`. No torch.

Sizes that follow from the width (head_dim, gated d_ff) are written only where the model departs
from the rule, so that `preset: tiny` with `d_model: 320` on top stays consistent.
"""

import copy
from typing import Any

from lmworks.base.config import suggest
from lmworks.base.errors import ConfigError

_GPT2_STYLE: dict[str, Any] = {
    "norm": {"kind": "layernorm", "eps": 1e-5},
    "use_bias": True,
    "mlp": {"activation": "gelu_tanh"},
    "position": {"kind": "learned"},
    "tie_embeddings": True,
}

_PRESETS: dict[str, dict[str, Any]] = {
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
    "tinystories": _GPT2_STYLE
    | {
        "vocab_size": 10000,
        "max_seq_len": 512,
        "d_model": 768,
        "num_layers": 4,
        "attention": {"num_heads": 16},
    },
    # Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2. Dropout
    # is off as in every later single-epoch pretraining; the original used 0.1.
    "gpt2-small": _GPT2_STYLE
    | {
        "vocab_size": 50257,
        "max_seq_len": 1024,
        "d_model": 768,
        "num_layers": 12,
        "attention": {"num_heads": 12},
    },
    # HuggingFaceTB/SmolLM2-135M, config.json (Allal et al. 2025, arXiv 2502.02737).
    "smollm2-135m": {
        "vocab_size": 49152,
        "max_seq_len": 8192,
        "d_model": 576,
        "num_layers": 30,
        "attention": {"num_heads": 9, "num_kv_heads": 3},
        "mlp": {"d_ff": 1536},
        "position": {"kind": "rope", "theta": 100000.0},
        "tie_embeddings": True,
    },
    # Touvron et al. 2023, arXiv 2302.13971, table 2.
    "llama-7b": {
        "vocab_size": 32000,
        "max_seq_len": 2048,
        "d_model": 4096,
        "num_layers": 32,
        "norm": {"kind": "rmsnorm", "eps": 1e-6},
        "attention": {"num_heads": 32},
        "mlp": {"d_ff": 11008},
    },
}

PRESET_NAMES = tuple(_PRESETS)


def preset_values(name: str) -> dict[str, Any]:
    """Values of the preset `name`; raises ConfigError that lists the known names."""
    if name not in _PRESETS:
        raise ConfigError(f"model.preset={name!r} is not known{suggest(name, _PRESETS)}")
    return copy.deepcopy(_PRESETS[name])
