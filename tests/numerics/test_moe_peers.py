"""Mixtures of experts against a loop over tokens in float64, and against transformers' blocks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.nn.config import MoEConfig
from lmworks.nn.moe.hashed import mixed
from lmworks.nn.moe.layer import MoE
from lmworks.ops.activation import GATE_ACTIVATIONS, PLAIN_ACTIVATIONS
from lmworks.ops.dispatch import use_kernels

D_MODEL = 12

ROUTERS = {
    "topk": {"top_k": 3},
    "switch": {"top_k": 1, "normalize": False},
    "sigmoid": {"top_k": 3, "score": "sigmoid", "scale": 2.5, "selection_bias": True},
    "v2 groups": {"top_k": 3, "num_groups": 4, "top_groups": 2, "normalize": False, "scale": 16.0},
    "v3 groups": {
        "top_k": 3,
        "num_groups": 4,
        "top_groups": 2,
        "group_score": "top2_sum",
        "score": "sigmoid",
        "selection_bias": True,
    },
    "noisy_topk": {"kind": "noisy_topk", "top_k": 3},
    "expert_choice": {"kind": "expert_choice", "mean_experts": 2.0},
    "hash": {"kind": "hash"},
    "sinkhorn": {"kind": "sinkhorn"},
    "auction": {"kind": "auction"},
}


def make_layer(router, *, dtype=torch.float64, seed=0, **values):
    config = MoEConfig.model_validate(
        {"d_ff": 10, "num_experts": 8, "num_shared_experts": 1, "router": router} | values
    )
    layer = MoE(config, d_model=D_MODEL, use_bias=False, layer=3)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in layer.state_dict().values():
            weight.normal_(0.0, 0.5, generator=g)
    layer.to(dtype)
    if dtype == torch.float64 and "bias" in layer.router.state_dict():
        layer.router.bias = layer.router.bias.double()
    return layer


def make_x(num_tokens, dtype=torch.float64, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(1, num_tokens, D_MODEL, generator=g, dtype=torch.float64).to(dtype)


def ids_of(x):
    return torch.arange(x.shape[1]).unsqueeze(0)


# ---- the definition: one token after the other, lists of numbers ----


def mlp(layer, expert, x):
    experts, name = layer.experts, layer.config.activation
    up = experts.up[expert] @ x
    if experts.gate is None:
        return experts.down[expert] @ PLAIN_ACTIVATIONS[name](up)
    return experts.down[expert] @ (GATE_ACTIVATIONS[name](experts.gate[expert] @ x) * up)


def top(scores, count):
    return sorted(range(len(scores)), key=lambda e: -scores[e])[:count]


def weights_of(layer, x, token_id):
    """Weight of each expert for one token, by the router's definition (outside training)."""
    router, config = layer.router, layer.config.router
    if config.kind == "hash":
        return {int(mixed(torch.tensor(token_id + 4 * 0x9E3779B9)) % 8): 1.0}
    logits = router.weight @ x
    softmax = logits.exp() / logits.exp().sum()
    sigmoid = 1 / (1 + (-logits).exp())
    if config.kind in ("sinkhorn", "auction"):
        best = top(logits.tolist(), 1)[0]
        return {best: (softmax if config.score == "softmax" else sigmoid)[best]}
    if config.kind == "noisy_topk":
        chosen = top(logits.tolist(), 3)
        return {e: logits[e].exp() / logits[chosen].exp().sum() for e in chosen}
    scores = softmax if config.score == "softmax" else sigmoid
    ranks = (scores + (router.bias if config.selection_bias else 0)).tolist()
    size = 8 // config.num_groups
    count = 1 if config.group_score == "max" else 2
    groups = [sorted(ranks[g * size : g * size + size])[-count:] for g in range(config.num_groups)]
    allowed = top([sum(group) for group in groups], config.top_groups)
    ranks = [r if e // size in allowed else -math.inf for e, r in enumerate(ranks)]
    chosen = top(ranks, config.top_k)
    total = sum(scores[e] for e in chosen) if config.normalize else 1.0
    return {e: scores[e] / total * config.scale for e in chosen}


def by_definition(layer, x_TC):
    """The output of the layer outside training."""
    tokens = range(len(x_TC))
    if layer.config.router.kind == "expert_choice":
        probs = [(layer.router.weight @ x).softmax(0) for x in x_TC]
        taken = min(len(x_TC), math.ceil(len(x_TC) * layer.config.router.mean_experts / 8))
        weights = [{} for _ in tokens]
        for e in range(8):
            for t in top([p[e].item() for p in probs], taken):
                weights[t][e] = probs[t][e]
    else:
        weights = [weights_of(layer, x_TC[t], t) for t in tokens]
    return torch.stack(
        [
            layer.shared(x_TC[t].view(1, 1, -1)).view(-1)
            + sum((w * mlp(layer, e, x_TC[t]) for e, w in weights[t].items()), 0 * x_TC[t])
            for t in tokens
        ]
    )


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_layer_is_its_definition(router, activation):
    layer = make_layer(ROUTERS[router], activation=activation).eval()
    x = make_x(21)
    y, _ = layer(x, ids_of(x))
    torch.testing.assert_close(y[0], by_definition(layer, x[0]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("router", ROUTERS)
def test_gradients_are_those_of_the_definition(router):
    layer = make_layer(ROUTERS[router]).eval()
    x = make_x(9).requires_grad_()
    layer(x, ids_of(x))[0].square().sum().backward()
    found = [x.grad, *(p.grad for p in layer.parameters())]
    leaves = [x, *layer.parameters()]
    wanted = torch.autograd.grad(
        by_definition(layer, x[0]).square().sum(), leaves, allow_unused=True
    )
    for got, want in zip(found, wanted, strict=True):
        # The noise has no part outside training, and nothing else is without gradient.
        torch.testing.assert_close(
            torch.zeros(()) if got is None else got,
            torch.zeros(()) if want is None else want,
            rtol=1e-10,
            atol=1e-10,
            check_dtype=False,
        )


@pytest.mark.parametrize("router", ROUTERS)
def test_native_kernels_equal_the_definition_in_fp32(router):
    layer = make_layer(ROUTERS[router], dtype=torch.float32).eval()
    exact = make_layer(ROUTERS[router]).eval()
    x = make_x(21)
    with use_kernels("cpu"):
        y, _ = layer(x.float(), ids_of(x))
    # Sums of 10 to 12 terms of size 1 to 10: a few ulp (6e-8 each); scale 16 multiplies them.
    torch.testing.assert_close(y[0].double(), by_definition(exact, x[0]), rtol=1e-4, atol=2e-5)


@settings(max_examples=40, deadline=None)
@given(
    num_tokens=st.integers(1, 12),
    num_experts=st.integers(1, 6),
    data=st.data(),
    all_on_one=st.booleans(),
)
def test_any_number_of_tokens_and_experts(num_tokens, num_experts, data, all_on_one):
    top_k = data.draw(st.integers(1, num_experts))
    layer = make_layer(
        {"top_k": top_k}, num_experts=num_experts, num_shared_experts=0, dtype=torch.float32
    ).eval()
    if all_on_one:
        with torch.no_grad():
            layer.router.weight.zero_()
    x = make_x(num_tokens, torch.float32)
    y, routing = layer(x)
    with use_kernels("reference"):
        wanted, _ = layer(x)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    assert int(routing.tokens_per_expert.sum()) == num_tokens * top_k
    if all_on_one:
        assert sorted(routing.tokens_per_expert.tolist())[-top_k:] == [num_tokens] * top_k


# ---- transformers ----


def copy_experts(layer, peer):
    theirs = dict(peer.named_parameters())
    gate, up = theirs["experts.gate_up_proj"].chunk(2, dim=1)
    with torch.no_grad():
        layer.router.weight.copy_(theirs["gate.weight"])
        for name, value in (("gate", gate), ("up", up), ("down", theirs["experts.down_proj"])):
            getattr(layer.experts, name).copy_(value)
            if layer.shared is not None:
                shared = theirs[f"shared_experts.{name}_proj.weight"]
                getattr(layer.shared, name).weight.copy_(shared)
        if getattr(layer.router, "bias", None) is not None:
            layer.router.bias.copy_(peer.gate.e_score_correction_bias)


def mixtral():
    module = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    config = module.MixtralConfig(
        hidden_size=32, intermediate_size=24, num_local_experts=8, num_experts_per_tok=2
    )
    return module.MixtralSparseMoeBlock, config, {"top_k": 2}, 0


def qwen3(normalize):
    module = pytest.importorskip("transformers.models.qwen3_moe.modeling_qwen3_moe")
    config = module.Qwen3MoeConfig(
        hidden_size=32,
        moe_intermediate_size=24,
        num_experts=16,
        num_experts_per_tok=4,
        norm_topk_prob=normalize,
    )
    return module.Qwen3MoeSparseMoeBlock, config, {"top_k": 4, "normalize": normalize}, 0


def deepseek_v2(method):
    module = pytest.importorskip("transformers.models.deepseek_v2.modeling_deepseek_v2")
    config = module.DeepseekV2Config(
        hidden_size=32,
        moe_intermediate_size=24,
        n_routed_experts=16,
        num_experts_per_tok=3,
        n_shared_experts=2,
        routed_scaling_factor=16.0,
        topk_method=method,
        n_group=4,
        topk_group=2,
    )
    router = {"top_k": 3, "normalize": False, "scale": 16.0}
    if method == "group_limited_greedy":
        router |= {"num_groups": 4, "top_groups": 2}
    return module.DeepseekV2Moe, config, router, 2


def deepseek_v3(normalize):
    module = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = module.DeepseekV3Config(
        hidden_size=32,
        moe_intermediate_size=24,
        n_routed_experts=16,
        num_experts_per_tok=3,
        n_shared_experts=1,
        routed_scaling_factor=2.5,
        norm_topk_prob=normalize,
        n_group=4,
        topk_group=2,
    )
    router = {"top_k": 3, "score": "sigmoid", "scale": 2.5, "normalize": normalize}
    router |= {"selection_bias": True, "num_groups": 4, "top_groups": 2, "group_score": "top2_sum"}
    return module.DeepseekV3MoE, config, router, 1


PEERS = {
    "Mixtral": mixtral,
    "Qwen3, normalised": lambda: qwen3(True),
    "Qwen3": lambda: qwen3(False),
    "DeepSeek-V2, greedy": lambda: deepseek_v2("greedy"),
    "DeepSeek-V2, groups": lambda: deepseek_v2("group_limited_greedy"),
    "DeepSeek-V3": lambda: deepseek_v3(True),
    "DeepSeek-V3, not normalised": lambda: deepseek_v3(False),
}


@pytest.mark.parametrize("name", PEERS)
def test_layer_equals_transformers_block(name):
    block, config, router, num_shared = PEERS[name]()
    config._experts_implementation = "eager"
    peer = block(config)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in peer.state_dict().values():
            weight.normal_(0.0, 0.2, generator=g)
    ours = MoE(
        MoEConfig.model_validate(
            {
                "d_ff": 24,
                "num_experts": peer.experts.num_experts,
                "num_shared_experts": num_shared,
                "router": router,
            }
        ),
        d_model=32,
        use_bias=False,
        layer=0,
    )
    copy_experts(ours, peer)
    x = torch.randn(2, 40, 32, generator=g)
    theirs_x, ours_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted = peer(theirs_x)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    found, _ = ours(ours_x)
    wanted.square().sum().backward()
    found.square().sum().backward()
    # fp32, sums in another order: 1e-5 of the largest element.
    scale = float(wanted.detach().abs().max())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * scale)
    scale = float(theirs_x.grad.abs().max())
    torch.testing.assert_close(ours_x.grad, theirs_x.grad, rtol=0, atol=1e-5 * scale)
    router_grad = dict(peer.named_parameters())["gate.weight"].grad
    scale = float(router_grad.abs().max())
    torch.testing.assert_close(ours.router.weight.grad, router_grad, rtol=0, atol=2e-5 * scale)
