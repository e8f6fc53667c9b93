"""What the families after Llama share: keys of the config, names of the weights."""

from collections.abc import Callable, Collection, Mapping
from itertools import groupby
from typing import Any, Final

from lmworks.models.config import ModelConfig
from lmworks.models.families.family import Values
from lmworks.models.families.fields import Fields
from lmworks.models.families.rope import read_rope, write_rope
from lmworks.models.families.weights import Piece, plain_pieces

GATED_ACTIVATIONS: Final = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
}
"""Their names of gate activations, and ours of the whole MLP."""

LLAMA_NAMES: Final = {
    "embed": "model.embed_tokens",
    "layers.{layer}.attention_norm": "model.layers.{layer}.input_layernorm",
    "layers.{layer}.attention.q": "model.layers.{layer}.self_attn.q_proj",
    "layers.{layer}.attention.k": "model.layers.{layer}.self_attn.k_proj",
    "layers.{layer}.attention.v": "model.layers.{layer}.self_attn.v_proj",
    "layers.{layer}.attention.o": "model.layers.{layer}.self_attn.o_proj",
    "layers.{layer}.mlp_norm": "model.layers.{layer}.post_attention_layernorm",
    "layers.{layer}.mlp.gate": "model.layers.{layer}.mlp.gate_proj",
    "layers.{layer}.mlp.up": "model.layers.{layer}.mlp.up_proj",
    "layers.{layer}.mlp.down": "model.layers.{layer}.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
QK_NORM_NAMES: Final = {
    "layers.{layer}.attention.q_norm": "model.layers.{layer}.self_attn.q_norm",
    "layers.{layer}.attention.k_norm": "model.layers.{layer}.self_attn.k_norm",
}
FULL, WINDOW = "full_attention", "sliding_attention"


def table_pieces(
    table: Mapping[str, str],
) -> Callable[[ModelConfig, Collection[str]], dict[str, list[Piece]]]:
    """The `pieces` of a family that differs from ours in names only."""

    def pieces(config: ModelConfig, there: Collection[str]) -> dict[str, list[Piece]]:
        return plain_pieces(config.weight_shapes(), table)

    return pieces


def read_sizes(fields: Fields, *, default_eps: float, tied: bool = False) -> Values:
    """Everything outside the layers, and the norm."""
    return {
        "vocab_size": fields.count("vocab_size"),
        "max_seq_len": fields.count("max_position_embeddings"),
        "d_model": fields.count("hidden_size"),
        "num_layers": fields.layers("num_hidden_layers"),
        "norm": {"kind": "rmsnorm", "eps": fields.number("rms_norm_eps", default_eps)},
        "tie_embeddings": fields.flag("tie_word_embeddings", tied),
        **read_init(fields),
    }


def read_heads(fields: Fields, *, head_dim: int = 0, default_kv_heads: bool = False) -> Values:
    """The heads of an AttentionConfig. `head_dim` is the value when left out; 0: by division."""
    num_heads = fields.count("num_attention_heads")
    if not head_dim:
        head_dim = max(1, fields.count("hidden_size") // num_heads)
    kv_heads = (num_heads,) if default_kv_heads else ()
    return {
        "num_heads": num_heads,
        "num_kv_heads": fields.count("num_key_value_heads", *kv_heads),
        "head_dim": fields.count("head_dim", head_dim),
    }


def read_mlp(fields: Fields, *, key: str = "hidden_act", default: str = "silu") -> Values:
    """A gated MLP."""
    name = fields.text(key, default)
    if name not in GATED_ACTIVATIONS:
        raise fields.error(key, name, f"one of {', '.join(GATED_ACTIVATIONS)}")
    return {"activation": GATED_ACTIVATIONS[name], "d_ff": fields.count("intermediate_size")}


def read_init(fields: Fields) -> Values:
    """The start of the weights, should the model be trained anew; changes no logits."""
    std = fields.number("initializer_range", 0.02)
    return {"init": {"std": std, "scale_residual": False}} if std > 0 else {}


def read_llama_like(
    fields: Fields,
    *,
    default_eps: float,
    default_theta: float = 10000.0,
    head_dim: int = 0,
    default_kv_heads: bool = False,
) -> Values:
    """A model of Llama's shape; families add what sets them apart."""
    values = read_sizes(fields, default_eps=default_eps)
    rope = read_rope(fields, max_seq_len=values["max_seq_len"], default_theta=default_theta)
    return values | {
        "attention": read_heads(fields, head_dim=head_dim, default_kv_heads=default_kv_heads),
        "mlp": read_mlp(fields),
        "position": rope,
    }


def window(size: int) -> Values:
    """Values of an AttentionConfig in which a query sees `size` keys, its own among them."""
    return {"mask": {"kind": "window", "size": size}}


def read_windows(fields: Fields, types: list[str], size: int | None) -> Values:
    """Values of a ModelConfig whose layers see all or a window, as `types` say."""
    if WINDOW not in types:
        return {}
    if size is None:
        raise fields.error("sliding_window", None, f"a number, since layers are {WINDOW}")
    kinds: Values = {"window": {"attention": window(size)}}
    if FULL in types:
        kinds["full"] = {}
    return {
        "layer_kinds": kinds,
        "layer_pattern": pattern(["window" if t == WINDOW else "full" for t in types]),
    }


def pattern(names: list[str]) -> list[str]:
    """The shortest `layer_pattern` that gives each layer its kind."""
    period = next(
        n
        for n in range(1, len(names) + 1)
        if all(a == b for a, b in zip(names, names[n:], strict=False))
    )
    runs = [(name, len(list(run))) for name, run in groupby(names[:period])]
    return [name if count == 1 else f"{name}*{count}" for name, count in runs]


def window_sizes(config: ModelConfig) -> list[int | None]:
    """Of each layer; None where it sees everything."""
    masks = [getattr(layer.attention, "mask", None) for layer in config.layers()]
    return [mask.size if mask is not None and mask.kind == "window" else None for mask in masks]


def write_windows(config: ModelConfig) -> Values:
    """`layer_types` and `sliding_window`."""
    sizes = window_sizes(config)
    known = [size for size in sizes if size is not None]
    return {
        "sliding_window": known[0] if known else None,
        "layer_types": [FULL if size is None else WINDOW for size in sizes],
    }


def write_llama_like(config: ModelConfig) -> Values:
    """The keys that all families after Llama have."""
    layer = next(iter(config.layers()))
    attention: Any = layer.attention
    mlp: Any = config.mlp
    activation = {ours: theirs for theirs, ours in reversed(GATED_ACTIVATIONS.items())}
    values: Values = {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_seq_len,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers,
        "rms_norm_eps": config.norm.eps,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": config.init.std,
        "num_attention_heads": attention.num_heads,
        "hidden_act": activation.get(mlp.activation, mlp.activation),
        "intermediate_size": mlp.d_ff,
        "attention_dropout": config.dropout,
        "use_cache": True,
        **write_rope(layer.position),
    }
    if attention.kind == "gqa":
        values["num_key_value_heads"] = attention.num_kv_heads
        values["head_dim"] = attention.head_dim
    return values
