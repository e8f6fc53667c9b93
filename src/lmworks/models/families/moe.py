"""Mixtures of experts with plain attention: Mixtral (arXiv 2401.04088) and Qwen 3's (2505.09388).

On the hub each expert has tensors of its own; transformers 5 holds the experts of a layer in two:
gate_up_proj (gate rows above up rows) and down_proj. Both are read, the first is written.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from lmworks.models.config import ModelConfig
from lmworks.models.families.common import (
    GATED_ACTIVATIONS,
    LLAMA_NAMES,
    QK_NORM_NAMES,
    pattern,
    read_llama_like,
    window,
    window_sizes,
    write_llama_like,
)
from lmworks.models.families.family import Family, Values
from lmworks.models.families.fields import Fields
from lmworks.models.families.llama import read_qwen3
from lmworks.models.families.weights import Piece, is_stacked, plain_pieces
from lmworks.nn.config import Shapes

EXPERT_NAMES: Final = {
    "layers.{layer}.mlp.router": "model.layers.{layer}.mlp.gate",
    "layers.{layer}.mlp.experts.gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
    "layers.{layer}.mlp.experts.up": "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
    "layers.{layer}.mlp.experts.down": "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
}
_MIXTRAL_EXPERT: Final = "model.layers.{layer}.block_sparse_moe.experts.{expert}"
_MIXTRAL_NAMES: Final = LLAMA_NAMES | {
    "layers.{layer}.mlp.router": "model.layers.{layer}.block_sparse_moe.gate",
    "layers.{layer}.mlp.experts.gate": f"{_MIXTRAL_EXPERT}.w1.weight",
    "layers.{layer}.mlp.experts.up": f"{_MIXTRAL_EXPERT}.w3.weight",
    "layers.{layer}.mlp.experts.down": f"{_MIXTRAL_EXPERT}.w2.weight",
}


def expert_pieces(
    table: Mapping[str, str],
) -> Callable[[ModelConfig, Collection[str]], dict[str, list[Piece]]]:
    """The `pieces` of a family with experts."""

    def pieces(config: ModelConfig, there: Collection[str]) -> dict[str, list[Piece]]:
        return pieces_with_experts(config.weight_shapes(), table, there)

    return pieces


def pieces_with_experts(
    shapes: Shapes, table: Mapping[str, str], there: Collection[str]
) -> dict[str, list[Piece]]:
    """Experts in one tensor each, or where they are there so, stacked as they are in memory."""
    if not is_stacked(there):
        return plain_pieces(shapes, table)
    stacked = {name: _stacked(name, shape) for name, shape in shapes.items()}
    plain = {name: shape for name, shape in shapes.items() if stacked[name] is None}
    found = {name: [piece] for name, piece in stacked.items() if piece is not None}
    return found | plain_pieces(plain, {**table, **EXPERT_NAMES})


def _stacked(name: str, shape: tuple[int, ...]) -> Piece | None:
    """Where one of our stacked tensors is in transformers 5's; None for all other weights."""
    layer, _, last = name.partition(".mlp.experts.")
    if not last:
        return None
    theirs = f"model.{layer}.mlp.experts"
    if last == "down":
        return Piece(f"{theirs}.down_proj")
    d_ff = shape[1]
    half = slice(0, d_ff) if last == "gate" else slice(d_ff, 2 * d_ff)
    return Piece(f"{theirs}.gate_up_proj", part=(slice(None), half))


def read_activation(fields: Fields) -> str:
    """Of the experts."""
    name = fields.text("hidden_act", "silu")
    if name not in GATED_ACTIVATIONS:
        raise fields.error("hidden_act", name, f"one of {', '.join(GATED_ACTIVATIONS)}")
    return GATED_ACTIVATIONS[name]


def dense_and_moe(is_moe: list[bool], dense: Values) -> Values:
    """Layers of a model whose own MLP is a mixture, some of which are dense."""
    if all(is_moe):
        return {}
    kinds: Values = {"dense": {"mlp": {"kind": "dense", **dense}}}
    if any(is_moe):
        kinds["moe"] = {}
    names = ["moe" if moe else "dense" for moe in is_moe]
    return {"layer_kinds": kinds, "layer_pattern": pattern(names)}


def mlps_of(config: ModelConfig) -> tuple[Any, Any]:
    """The first dense MLP and the first mixture of a model; None for one that it has not."""
    first: dict[str, Any] = {}
    for layer in config.layers():
        first.setdefault(layer.mlp.kind, layer.mlp)
    return first.get("dense"), first.get("moe")


def _read_mixtral(fields: Fields, there: Collection[str]) -> Values:
    values = read_llama_like(fields, default_eps=1e-5, default_theta=1e6)
    if fields.has("sliding_window"):
        values["attention"] |= window(fields.count("sliding_window"))
    mlp = values["mlp"]
    num_experts = fields.count("num_local_experts", fields.raw("num_experts", 8))
    router = {"kind": "topk", "top_k": fields.count("num_experts_per_tok", 2)}
    return values | {"mlp": {"kind": "moe", **mlp, "num_experts": num_experts, "router": router}}


def _write_mixtral(config: ModelConfig) -> Values:
    values = write_llama_like(config) | {"sliding_window": window_sizes(config)[0]}
    _, moe = mlps_of(config)
    if moe is None:
        return values
    return values | {
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": int(moe.router.experts_per_token),
    }


def _read_qwen3_moe(fields: Fields, there: Collection[str]) -> Values:
    fields.refuse_unless("use_sliding_window", False)
    values = read_qwen3(fields, head_dim=0)
    num_layers, dense = values["num_layers"], values["mlp"]
    step = fields.count("decoder_sparse_step", 1)
    dense_layers = fields.raw("mlp_only_layers", [])
    if not isinstance(dense_layers, list) or any(type(i) is not int for i in dense_layers):
        raise fields.error("mlp_only_layers", dense_layers, "a list of numbers of layers")
    skipped = set(dense_layers)
    is_moe = [i not in skipped and (i + 1) % step == 0 for i in range(num_layers)]
    moe = {
        "kind": "moe",
        "activation": dense["activation"],
        "d_ff": fields.count("moe_intermediate_size"),
        "num_experts": fields.count("num_experts", fields.raw("num_local_experts", 128)),
        "router": {
            "kind": "topk",
            "top_k": fields.count("num_experts_per_tok", 8),
            "normalize": fields.flag("norm_topk_prob", False),
        },
    }
    return values | {"mlp": moe} | dense_and_moe(is_moe, dense)


def _write_qwen3_moe(config: ModelConfig) -> Values:
    values = write_llama_like(config) | {"attention_bias": False, "use_sliding_window": False}
    dense, moe = mlps_of(config)
    if dense is not None:
        values["intermediate_size"] = dense.d_ff
    if moe is None:
        return values
    is_dense = [i for i, layer in enumerate(config.layers()) if layer.mlp.kind == "dense"]
    return values | {
        "moe_intermediate_size": moe.d_ff,
        "num_experts": moe.num_experts,
        "num_experts_per_tok": int(moe.router.experts_per_token),
        "norm_topk_prob": getattr(moe.router, "normalize", True),
        "decoder_sparse_step": 1,
        "mlp_only_layers": is_dense,
    }


MIXTRAL = Family(
    "mixtral", "MixtralForCausalLM", _read_mixtral, _write_mixtral, expert_pieces(_MIXTRAL_NAMES)
)
QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    _read_qwen3_moe,
    _write_qwen3_moe,
    expert_pieces(LLAMA_NAMES | QK_NORM_NAMES | EXPERT_NAMES),
)
