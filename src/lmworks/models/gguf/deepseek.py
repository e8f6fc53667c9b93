"""DeepSeek V2 and V3 in GGUF (`deepseek2`): latent attention, and experts behind some dense layers.

Files that llama.cpp writes today have keys and values of the absorbed form as two tensors, and the
sizes of heads under `*_length_mla`; older ones have one tensor and the sizes under `*_length`.
YaRN scales all scores by mscale^2, whose weight is `yarn_log_multiplier` / 0.1, and leaves rotated
vectors alone.
"""

import math
from typing import Final

from lmworks.base.errors import CheckpointError
from lmworks.models.config import ModelConfig
from lmworks.models.gguf.experts import mlps_of, moe_values
from lmworks.models.gguf.metadata import Metadata
from lmworks.models.gguf.rope import read_rope, write_rope
from lmworks.models.gguf.sizes import RMS_EPS, Pairs, Values, read_sizes, write_sizes
from lmworks.nn.config import MLAConfig, MoEConfig, RopeConfig
from lmworks.nn.config.rope_scaling import yarn_mscale

_LOG_MULTIPLIER: Final = "rope.scaling.yarn_log_multiplier"
_SCORES: Final = {1: "softmax", 2: "sigmoid"}


def read_deepseek2(meta: Metadata) -> Values:
    """Values of a ModelConfig."""
    meta.expect("nextn_predict_layers", 0)
    values = read_sizes(meta)
    num_heads = values["attention"]["num_heads"]
    rope_dim = meta.whole("rope.dimension_count", at_least=2)
    kv_rank = meta.whole("attention.kv_lora_rank", at_least=1)
    head_dim = meta.whole("attention.key_length_mla", meta.whole("attention.key_length"))
    v_dim = meta.whole("attention.value_length_mla", meta.whole("attention.value_length"))
    if head_dim <= rope_dim:
        raise CheckpointError(f"heads of {head_dim} elements, of which {rope_dim} turn")
    position = read_rope(meta, rope_dim) | {"pairing": "interleaved"}
    attention = {
        "kind": "mla",
        "num_heads": num_heads,
        "q_rank": meta.whole("attention.q_lora_rank", 0),
        "kv_rank": kv_rank,
        "nope_dim": head_dim - rope_dim,
        "rope_dim": rope_dim,
        "v_dim": v_dim,
    }
    weight = meta.number(_LOG_MULTIPLIER, 0.0) / 0.1
    scaling = position.get("scaling", {})
    if weight and scaling.get("kind") == "yarn" and scaling["factor"] > 1:
        attention["scale"] = yarn_mscale(scaling["factor"], weight) ** 2 / math.sqrt(head_dim)
        scaling["attention_factor"] = 1.0
    norm = {"kind": "rmsnorm", "eps": meta.number(RMS_EPS)}
    return (
        values | {"norm": norm, "attention": attention, "position": position} | _mlps(meta, values)
    )


def _mlps(meta: Metadata, values: Values) -> Values:
    """The mixture as the model's MLP, and dense layers in front as a kind of their own."""
    num_layers, num_experts = values["num_layers"], meta.whole("expert_count", 0)
    num_dense = min(meta.whole("leading_dense_block_count", 0), num_layers)
    d_ff, num_shared = meta.whole("expert_feed_forward_length"), meta.whole("expert_shared_count")
    moe = moe_values(d_ff, num_experts, _router(meta), num_shared)
    if num_dense == num_layers:
        return {}
    if not num_dense:
        return {"mlp": moe}
    dense = {"kind": "dense", **values["mlp"]}
    return {
        "mlp": moe,
        "layer_kinds": {"dense": {"mlp": dense}, "moe": {}},
        "layer_pattern": [f"dense*{num_dense}", f"moe*{num_layers - num_dense}"],
    }


def _router(meta: Metadata) -> Values:
    score = _SCORES.get(meta.whole("expert_gating_func", 1))
    if score is None:
        raise CheckpointError("expert_gating_func is neither 1 (softmax) nor 2 (sigmoid)")
    scale = meta.number("expert_weights_scale", 1.0)
    router: Values = {
        "kind": "topk",
        "top_k": meta.whole("expert_used_count", 1, at_least=1),
        "score": score,
        "normalize": meta.flag("expert_weights_norm", False),
        "scale": scale or 1.0,
        "selection_bias": any(name.endswith(".exp_probs_b.bias") for name in meta.tensors),
    }
    num_groups = meta.whole("expert_group_count", 0)
    top_groups = meta.whole("expert_group_used_count", 0)
    if num_groups > 1:
        # V2 ranks groups by their best expert, V3 by their two best.
        rank = "top2_sum" if score == "sigmoid" else "max"
        router |= {"num_groups": num_groups, "top_groups": top_groups, "group_score": rank}
    return router


def write_deepseek2(config: ModelConfig) -> Pairs:
    """Pairs of a config that may be a DeepSeek V2 or V3."""
    attention, position = config.attention, config.position
    if not isinstance(attention, MLAConfig) or not isinstance(position, RopeConfig):
        return {}
    pairs = write_sizes(config) | write_rope(position, attention.rope_dim)
    pairs |= {
        RMS_EPS: float(config.norm.eps),
        "attention.head_count": attention.num_heads,
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": attention.kv_rank,
        "attention.key_length": attention.kv_rank + attention.rope_dim,
        "attention.value_length": attention.kv_rank,
        "attention.key_length_mla": attention.head_dim,
        "attention.value_length_mla": attention.v_dim,
    }
    if attention.q_rank:
        pairs["attention.q_lora_rank"] = attention.q_rank
    if attention.scale and position.scaling.kind == "yarn" and position.scaling.factor > 1:
        mscale = math.sqrt(attention.scale * math.sqrt(attention.head_dim))
        pairs[_LOG_MULTIPLIER] = (mscale - 1) / math.log(position.scaling.factor)
        # The scale of rotated vectors is left out: with this key it is 1.
        pairs.pop("rope.scaling.attn_factor")
    dense, moe = mlps_of(config)
    pairs["feed_forward_length"] = dense.d_ff if dense else moe.d_ff if moe else 1
    num_dense = sum(layer.mlp.kind == "dense" for layer in config.layers())
    return pairs | {"leading_dense_block_count": num_dense} | _write_moe(moe)


def _write_moe(moe: MoEConfig | None) -> Pairs:
    if moe is None or moe.router.kind != "topk":
        return {}
    router = moe.router
    pairs: Pairs = {
        "expert_count": moe.num_experts,
        "expert_used_count": router.top_k,
        "expert_shared_count": moe.num_shared_experts,
        "expert_feed_forward_length": moe.d_ff,
        "expert_weights_scale": float(router.scale),
        "expert_weights_norm": router.normalize,
        "expert_gating_func": {score: number for number, score in _SCORES.items()}[router.score],
    }
    if router.num_groups > 1:
        pairs |= {
            "expert_group_count": router.num_groups,
            "expert_group_used_count": router.top_groups,
        }
    return pairs
