"""Pairs that architectures share: sizes, norms, rotary positions over whole heads."""

from typing import Any, Final

from lmworks.base.errors import CheckpointError
from lmworks.models.config import ModelConfig
from lmworks.models.gguf.metadata import Metadata
from lmworks.models.gguf.rope import read_rope, write_rope
from lmworks.nn.config import AttentionConfig, RopeConfig
from lmworks.tokenizer.gguf_metadata import Value

Values = dict[str, Any]
Pairs = dict[str, Value]
RMS_EPS: Final = "attention.layer_norm_rms_epsilon"


def read_sizes(meta: Metadata) -> Values:
    """Values of a ModelConfig that every architecture has; a gated MLP unless changed."""
    embedding = meta.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError("no token_embd.weight of two dims: not a language model")
    meta.expect("attention.causal", True)
    d_model = meta.whole("embedding_length", at_least=1)
    num_heads = meta.whole("attention.head_count", at_least=1)
    num_layers = meta.whole("block_count", at_least=1)
    # Now, because a list of the layers of a forged number could take all memory.
    if num_layers > len(meta.tensors):
        raise CheckpointError(
            f"block_count={num_layers}, but there are only {len(meta.tensors)} tensors"
        )
    return {
        "vocab_size": embedding.shape[0],
        "max_seq_len": meta.whole("context_length", at_least=1),
        "d_model": d_model,
        "num_layers": num_layers,
        "attention": {
            "num_heads": num_heads,
            "num_kv_heads": meta.whole("attention.head_count_kv", num_heads, at_least=1),
            "head_dim": meta.whole("attention.key_length", d_model // num_heads, at_least=1),
        },
        "mlp": {"activation": "swiglu", "d_ff": meta.whole("feed_forward_length", at_least=1)},
        "tie_embeddings": "output.weight" not in meta.tensors,
    }


def read_rms_decoder(meta: Metadata) -> Values:
    """RMSNorm, rotary positions over whole heads."""
    values = read_sizes(meta)
    head_dim = values["attention"]["head_dim"]
    meta.expect("attention.value_length", head_dim)
    meta.expect("rope.dimension_count", head_dim)
    return values | {
        "norm": {"kind": "rmsnorm", "eps": meta.number(RMS_EPS)},
        "position": read_rope(meta, head_dim),
    }


def write_sizes(config: ModelConfig) -> Pairs:
    """The pairs that `read_sizes` reads."""
    attention = config.attention
    pairs: Pairs = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_seq_len,
        "embedding_length": config.d_model,
        "block_count": config.num_layers,
        "feed_forward_length": config.mlp.d_ff,
    }
    if isinstance(attention, AttentionConfig):
        pairs["attention.head_count"] = attention.num_heads
        pairs["attention.head_count_kv"] = attention.num_kv_heads
    return pairs


def write_rms_decoder(config: ModelConfig) -> Pairs:
    """The pairs that `read_rms_decoder` reads."""
    pairs = write_sizes(config) | {RMS_EPS: float(config.norm.eps)}
    if isinstance(config.attention, AttentionConfig):
        head_dim = config.attention.head_dim
        pairs |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
        if isinstance(config.position, RopeConfig):
            pairs |= write_rope(config.position, head_dim)
    return pairs


def has_bias(meta: Metadata, stem: str) -> bool:
    """Whether the first layer's tensor has one; others must then have it, too."""
    return f"blk.0.{stem}.bias" in meta.tensors
