"""One small model of each architecture that GGUF files are written for, and a vocabulary."""

from typing import Any, Final

import torch

from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.train import train_bpe_from_iterator

_PLAIN: Final[dict[str, Any]] = {
    "vocab_size": 384,
    "max_seq_len": 128,
    "d_model": 64,
    "num_layers": 3,
    "norm": {"eps": 1e-6},
    "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16},
    "mlp": {"d_ff": 96},
}
_GEMMA: Final[dict[str, Any]] = _PLAIN | {
    "num_layers": 7,
    "norm": {"eps": 1e-6, "unit_offset": True},
    "norm_position": "double",
    "mlp": {"d_ff": 96, "activation": "geglu_tanh"},
    "embedding_scale": 8.0,
    "tie_embeddings": True,
}
_WINDOW: Final = {"attention": {"mask": {"kind": "window", "size": 8}}}
_MOE: Final = {
    "kind": "moe",
    "d_ff": 32,
    "num_experts": 4,
    "router": {"kind": "topk", "top_k": 2},
}
_MLA: Final[dict[str, Any]] = _PLAIN | {
    "attention": {
        "kind": "mla",
        "num_heads": 4,
        "kv_rank": 32,
        "nope_dim": 32,
        "rope_dim": 8,
        "v_dim": 32,
    },
    "position": {"kind": "rope", "pairing": "interleaved"},
}


def _attention(**values: Any) -> dict[str, Any]:
    return {"attention": _PLAIN["attention"] | values}


def _rope(**values: Any) -> dict[str, Any]:
    return {"position": {"kind": "rope", "theta": 500000.0, **values}}


LLAMA3: Final = {
    "kind": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_seq_len": 8192,
}
YARN: Final = {"kind": "yarn", "factor": 4.0, "original_max_seq_len": 32}

CONFIGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("llama", _PLAIN),
    "llama tied": ("llama", _PLAIN | {"tie_embeddings": True}),
    "llama with biases": ("llama", _PLAIN | {"use_bias": True}),
    "llama linear": ("llama", _PLAIN | _rope(scaling={"kind": "linear", "factor": 2.0})),
    "llama yarn": ("llama", _PLAIN | _rope(scaling=YARN)),
    "llama 3": ("llama", _PLAIN | _rope(scaling=LLAMA3)),
    "llama interleaved": ("llama", _PLAIN | _rope(pairing="interleaved")),
    "mixtral": ("llama", _PLAIN | {"mlp": _MOE}),
    "qwen2": ("qwen2", _PLAIN | _attention(qkv_bias=True)),
    "qwen3": ("qwen3", _PLAIN | _attention(qk_norm=True)),
    "qwen3moe": ("qwen3moe", _PLAIN | _attention(qk_norm=True) | {"mlp": _MOE}),
    "gpt2": (
        "gpt2",
        _PLAIN
        | {
            "norm": {"kind": "layernorm"},
            "use_bias": True,
            "attention": {"num_heads": 4},
            "mlp": {"d_ff": 256, "activation": "gelu_tanh"},
            "position": {"kind": "learned"},
            "tie_embeddings": True,
        },
    ),
    "olmo2": (
        "olmo2",
        _PLAIN
        | _attention(qk_norm=True, qk_norm_scope="full")
        | {"norm_position": "reordered"},
    ),
    "gemma2": (
        "gemma2",
        _GEMMA
        | _attention(logit_softcap=50.0)
        | {
            "logit_softcap": 30.0,
            "layer_kinds": {"local": _WINDOW, "global": {}},
            "layer_pattern": ["local", "global"],
        },
    ),
    "gemma3": (
        "gemma3",
        _GEMMA
        | _attention(qk_norm=True)
        | _rope(theta=1e6, scaling={"kind": "linear", "factor": 8.0})
        | {
            "layer_kinds": {
                "local": _WINDOW | {"position": {"theta": 10000.0, "scaling": {"kind": "none"}}},
                "global": {},
            },
            "layer_pattern": ["local*5", "global"],
        },
    ),
    "deepseek v2 lite": ("deepseek2", _MLA | {
        "layer_kinds": {
            "dense": {},
            "moe": {"mlp": _MOE | {
                "num_shared_experts": 2,
                "router": {"kind": "topk", "top_k": 2, "normalize": False},
            }},
        },
        "layer_pattern": ["dense", "moe*2"],
    }),
    "deepseek v3": ("deepseek2", _MLA | {
        "attention": _MLA["attention"] | {"q_rank": 32, "scale": 0.1 * 1.1**2},
        "position": {
            "kind": "rope",
            "pairing": "interleaved",
            "scaling": YARN | {"attention_factor": 1.0},
        },
        "layer_kinds": {
            "dense": {},
            "moe": {"mlp": _MOE | {
                "num_experts": 8,
                "num_shared_experts": 1,
                "router": {
                    "kind": "topk", "top_k": 2, "score": "sigmoid", "scale": 2.5,
                    "selection_bias": True, "num_groups": 4, "top_groups": 2,
                    "group_score": "top2_sum",
                },
            }},
        },
        "layer_pattern": ["dense", "moe*2"],
    }),
}  # fmt: skip


def model_of(name: str) -> Decoder:
    """A random model of one of the CONFIGS; its norms and biases are not trivial."""
    generator = torch.Generator().manual_seed(0)
    model = Decoder(ModelConfig.model_validate(CONFIGS[name][1]), generator=generator)
    with torch.no_grad():
        for name_of, weight in model.state_dict().items():
            if weight.ndim == 1:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
            elif "embed" not in name_of:
                weight.mul_(5)
    return model.eval()


def vocabulary() -> BPETokenizer:
    """Byte-level BPE of fewer tokens than the models have."""
    text = "the cat sat on the mat, 1234 Größe 中文 🙂\n\n  then the <tool> there"
    return train_bpe_from_iterator([text * 20], 300, pattern="gpt2", num_threads=1)
