"""DeepSeek V2 (arXiv 2405.04434) and V3 (2412.19437): latent attention, fine-grained experts.

The first layers are dense. V2 routes by softmax, V3 by sigmoid with a bias that only the choice
sees; both may limit a token to a few groups of experts. V3's checkpoints hold modules that predict
further tokens as layers behind the last one.
"""

import math
from collections.abc import Collection
from typing import Any, Final

from lmworks.models.config import ModelConfig
from lmworks.models.families.common import LLAMA_NAMES, read_mlp, read_sizes, write_llama_like
from lmworks.models.families.family import Family, Values
from lmworks.models.families.fields import Fields
from lmworks.models.families.moe import (
    EXPERT_NAMES,
    dense_and_moe,
    expert_pieces,
    mlps_of,
    pieces_with_experts,
)
from lmworks.models.families.rope import read_rope, score_scale
from lmworks.models.families.weights import Piece, columns

_NAMES: Final = (
    LLAMA_NAMES
    | EXPERT_NAMES
    | {
        "layers.{layer}.attention.q_down": "model.layers.{layer}.self_attn.q_a_proj",
        "layers.{layer}.attention.q_norm": "model.layers.{layer}.self_attn.q_a_layernorm",
        "layers.{layer}.attention.q_up": "model.layers.{layer}.self_attn.q_b_proj",
        "layers.{layer}.attention.kv_down": "model.layers.{layer}.self_attn.kv_a_proj_with_mqa",
        "layers.{layer}.attention.kv_norm": "model.layers.{layer}.self_attn.kv_a_layernorm",
        "layers.{layer}.attention.kv_up": "model.layers.{layer}.self_attn.kv_b_proj",
        "layers.{layer}.mlp.router.bias": "model.layers.{layer}.mlp.gate.e_score_correction_bias",
        "layers.{layer}.mlp.shared.gate": "model.layers.{layer}.mlp.shared_experts.gate_proj",
        "layers.{layer}.mlp.shared.up": "model.layers.{layer}.mlp.shared_experts.up_proj",
        "layers.{layer}.mlp.shared.down": "model.layers.{layer}.mlp.shared_experts.down_proj",
        # Of modules that predict further tokens.
        "layers.{layer}.hidden_norm": "model.layers.{layer}.hnorm",
        "layers.{layer}.embed_norm": "model.layers.{layer}.enorm",
        "layers.{layer}.proj": "model.layers.{layer}.eh_proj",
        "layers.{layer}.norm": "model.layers.{layer}.shared_head.norm",
    }
)
_LATENT_EPS: Final = 1e-6
"""Of the norms of latents in transformers, whatever rms_norm_eps says."""


def _read(fields: Fields, router: Values) -> Values:
    for key in ("attention_bias", "mlp_bias"):
        fields.refuse_unless(key, False)
    fields.refuse_unless("moe_layer_freq", 1)
    fields.refuse_unless("rms_norm_eps", _LATENT_EPS)
    for key in ("head_dim", "qk_head_dim"):  # follow from the sizes of the parts
        fields.raw(key)
    values = read_sizes(fields, default_eps=_LATENT_EPS)
    num_heads = fields.count("num_attention_heads")
    fields.refuse_unless("num_key_value_heads", num_heads)
    nope_dim, rope_dim = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
    rope = read_rope(fields, max_seq_len=values["max_seq_len"], default_theta=10_000.0)
    mscale = score_scale(fields)
    dense = read_mlp(fields)
    num_layers, num_dense = values["num_layers"], fields.size("first_k_dense_replace")
    moe = {
        "kind": "moe",
        "activation": dense["activation"],
        "d_ff": fields.count("moe_intermediate_size"),
        "num_experts": fields.count("n_routed_experts"),
        "num_shared_experts": fields.size("n_shared_experts", 0),
        "router": {
            "kind": "topk",
            "top_k": fields.count("num_experts_per_tok"),
            "scale": fields.number("routed_scaling_factor"),
            **router,
        },
    }
    return (
        values
        | {
            "attention": {
                "kind": "mla",
                "num_heads": num_heads,
                "q_rank": fields.size("q_lora_rank", 0),
                "kv_rank": fields.count("kv_lora_rank"),
                "nope_dim": nope_dim,
                "rope_dim": rope_dim,
                "v_dim": fields.count("v_head_dim"),
                "scale": 0.0 if mscale == 1 else mscale / math.sqrt(nope_dim + rope_dim),
            },
            "position": rope | {"pairing": "interleaved"},
            "mlp": moe,
        }
        | dense_and_moe([layer >= num_dense for layer in range(num_layers)], dense)
    )


def _read_v2(fields: Fields, there: Collection[str]) -> Values:
    fields.refuse_unless("norm_topk_prob", False)
    fields.refuse_unless("scoring_func", "softmax")
    method = fields.text("topk_method", "greedy")
    groups: Values = {}
    if method == "group_limited_greedy":
        groups = {"num_groups": fields.count("n_group"), "top_groups": fields.count("topk_group")}
    elif method != "greedy":
        raise fields.error("topk_method", method, "greedy or group_limited_greedy")
    for key in ("n_group", "topk_group"):
        fields.raw(key)
    return _read(fields, {"score": "softmax", "normalize": False, **groups})


def _read_v3(fields: Fields, there: Collection[str]) -> Values:
    fields.refuse_unless("scoring_func", "sigmoid")
    fields.refuse_unless("topk_method", "noaux_tc")
    router = {
        "score": "sigmoid",
        "selection_bias": True,
        "normalize": fields.flag("norm_topk_prob", True),
        "num_groups": fields.count("n_group", 8),
        "top_groups": fields.count("topk_group", 4),
        "group_score": "top2_sum",
    }
    values = _read(fields, router)
    depth = fields.size("num_nextn_predict_layers", 0)
    has_modules = f"model.layers.{values['num_layers']}.eh_proj.weight" in there
    if depth and (has_modules or not there):  # transformers keeps the key and drops the weights
        values["mtp"] = {"kind": "sequential", "depth": depth}
    if not fields.flag("rope_interleave", True):
        values["position"]["pairing"] = "half"
    return values


def _write(config: ModelConfig) -> Values:
    dense, moe = mlps_of(config)
    attention: Any = config.attention
    values = write_llama_like(config)
    if attention.kind != "mla" or moe is None:
        return values
    num_dense = sum(layer.mlp.kind == "dense" for layer in config.layers())
    values |= {
        "attention_bias": False,
        "num_key_value_heads": attention.num_heads,
        "q_lora_rank": attention.q_rank or None,
        "kv_lora_rank": attention.kv_rank,
        "qk_nope_head_dim": attention.nope_dim,
        "qk_rope_head_dim": attention.rope_dim,
        "v_head_dim": attention.v_dim,
        "intermediate_size": moe.d_ff if dense is None else dense.d_ff,
        "moe_intermediate_size": moe.d_ff,
        "n_routed_experts": moe.num_experts,
        "n_shared_experts": moe.num_shared_experts or None,
        "num_experts_per_tok": int(moe.router.experts_per_token),
        "routed_scaling_factor": getattr(moe.router, "scale", 1.0),
        "norm_topk_prob": getattr(moe.router, "normalize", True),
        "n_group": getattr(moe.router, "num_groups", 1),
        "topk_group": getattr(moe.router, "top_groups", 1),
        "first_k_dense_replace": num_dense,
    }
    if attention.scale and values["rope_scaling"]:
        _write_mscale(values["rope_scaling"], attention)
    return values


def _write_mscale(scaling: Values, attention: Any) -> None:
    """The YaRN keys by which transformers arrives at the factors of scores and of rotations."""
    root = math.sqrt(attention.scale * math.sqrt(attention.nope_dim + attention.rope_dim))
    log_factor = 0.1 * math.log(scaling["factor"])
    weight = round((root - 1) / log_factor, 9)
    scaling["mscale_all_dim"] = weight
    if scaling.get("attention_factor") == 1.0:
        scaling["mscale"] = weight


def _write_v2(config: ModelConfig) -> Values:
    values = _write(config)
    groups = values.get("n_group", 1)
    return values | {"topk_method": "group_limited_greedy" if groups > 1 else "greedy"}


def _write_v3(config: ModelConfig) -> Values:
    is_interleaved = getattr(config.position, "pairing", "half") == "interleaved"
    return _write(config) | {
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": config.mtp.depth,
        "rope_interleave": is_interleaved,
    }


def _pieces_v3(config: ModelConfig, there: Collection[str]) -> dict[str, list[Piece]]:
    """A module that predicts further tokens is stored as one more layer."""
    as_layer: dict[str, str] = {}
    for name in config.weight_shapes():
        first, _, rest = name.partition(".")
        if first == "mtp":
            depth, _, local = rest.partition(".")
            layer = config.num_layers + int(depth)
            as_layer[name] = f"layers.{layer}.{local.removeprefix('block.')}"
        else:
            as_layer[name] = name
    shapes = {as_layer[name]: shape for name, shape in config.weight_shapes().items()}
    found = pieces_with_experts(shapes, _NAMES, there)
    pieces = {name: found[layer_name] for name, layer_name in as_layer.items()}
    for name, parts in pieces.items():
        if name.startswith("mtp.") and name.endswith(".proj.weight"):
            pieces[name] = _swapped(parts[0].theirs, config.d_model)
    return pieces


def _swapped(theirs: str, d_model: int) -> list[Piece]:
    """Their projection reads [embedding; hidden state], ours the other way round."""
    left, right = columns(0, d_model), columns(d_model, 2 * d_model)
    return [Piece(theirs, part=right, ours=left), Piece(theirs, part=left, ours=right)]


def _is_left_over(name: str) -> bool:
    """Copies of the embedding and of the head that each of those modules has."""
    is_embedding = name.startswith("model.layers.") and name.endswith(".embed_tokens.weight")
    return is_embedding or name.endswith((".shared_head.head.weight", "rotary_emb.inv_freq"))


DEEPSEEK_V2 = Family(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    _read_v2,
    _write_v2,
    expert_pieces(_NAMES),
    defaults={"routed_scaling_factor": 1.0, "first_k_dense_replace": 0},
)
DEEPSEEK_V3 = Family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    _read_v3,
    _write_v3,
    _pieces_v3,
    defaults={"routed_scaling_factor": 2.5, "first_k_dense_replace": 3},
    is_left_over=_is_left_over,
)
