"""Mixtures of experts in GGUF: pairs `expert_*`.

`llama` and `qwen3moe` say only how many experts there are and how many a token takes: weights are a
softmax whose chosen ones sum to 1.
"""

from typing import Any

from lmworks.models.config import ModelConfig
from lmworks.models.gguf.metadata import Metadata
from lmworks.models.gguf.sizes import Pairs, Values
from lmworks.nn.config import MLPConfig, MoEConfig


def read_experts(meta: Metadata, d_ff: int) -> Values:
    """The section `mlp` of a mixture of experts of width `d_ff`; nothing if there are none."""
    num_experts = meta.whole("expert_count", 0)
    meta.expect("expert_used_count", *((0,) if not num_experts else range(1, num_experts + 1)))
    if not num_experts:
        return {}
    router = {"kind": "topk", "top_k": meta.whole("expert_used_count", at_least=1)}
    return {"mlp": moe_values(d_ff, num_experts, router)}


def moe_values(d_ff: int, num_experts: int, router: dict[str, Any], num_shared: int = 0) -> Values:
    """A MoEConfig without what only training needs."""
    return {
        "kind": "moe",
        "activation": "swiglu",
        "d_ff": d_ff,
        "num_experts": num_experts,
        "num_shared_experts": num_shared,
        "router": router,
        "balance": {"switch_weight": 0.0},
    }


def write_experts(config: ModelConfig, width_key: str) -> Pairs:
    """The pairs that `read_experts` reads, and the width under its key."""
    _, moe = mlps_of(config)
    if moe is None or moe.router.kind != "topk":
        return {}
    return {
        "expert_count": moe.num_experts,
        "expert_used_count": moe.router.top_k,
        width_key: moe.d_ff,
    }


def mlps_of(config: ModelConfig) -> tuple[MLPConfig | None, MoEConfig | None]:
    """The first dense MLP and the first mixture of the layers, where there is one."""
    mlps = [layer.mlp for layer, _ in config.layer_counts()]
    return (
        next((mlp for mlp in mlps if isinstance(mlp, MLPConfig)), None),
        next((mlp for mlp in mlps if isinstance(mlp, MoEConfig)), None),
    )
