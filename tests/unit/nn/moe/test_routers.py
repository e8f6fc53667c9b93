"""What sets the routers apart beyond the definition that tests/numerics compares them with."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmworks.nn.config import MoEConfig
from lmworks.nn.moe.assignment import auction, sinkhorn
from lmworks.nn.moe.hashed import mixed
from lmworks.nn.moe.layer import MoE, make_router


def router(num_experts=8, **values):
    config = MoEConfig.model_validate({"d_ff": 4, "num_experts": num_experts, "router": values})
    made = make_router(config, d_model=6, layer=0)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(generator=g)
    return made


X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))


def loads(choice):
    return torch.bincount(choice.expert_S, minlength=8)


def test_routing_is_fp32_whatever_the_input():
    choice = router(kind="topk").bfloat16()(X.bfloat16())
    assert choice.logits_NE.dtype == choice.weight_S.dtype == torch.float32


def test_the_bias_changes_the_choice_and_not_the_weights():
    made = router(kind="topk", top_k=1, score="sigmoid", normalize=False, selection_bias=True)
    made.bias[5] = 10.0
    choice = made(X)
    assert choice.expert_S.tolist() == [5] * 64
    torch.testing.assert_close(choice.weight_S, choice.logits_NE[:, 5].sigmoid())


@pytest.mark.parametrize("group_score", ["max", "top2_sum"])
def test_a_token_stays_within_its_groups(group_score):
    made = router(kind="topk", top_k=4, num_groups=4, top_groups=2, group_score=group_score)
    groups = made(X).expert_S.view(64, 4) // 2
    assert all(len(set(row)) == 2 for row in groups.tolist())


def test_noise_is_there_in_training_only():
    made = router(kind="noisy_topk")
    torch.manual_seed(0)
    first, second = made(X), made(X)
    assert not torch.equal(first.expert_S, second.expert_S)
    made.eval()
    assert torch.equal(made(X).weight_S, made(X).weight_S)


def test_expert_choice_loads_are_equal():
    choice = router(kind="expert_choice", mean_experts=1.5)(X)
    assert loads(choice).tolist() == [12] * 8


def test_hash_depends_on_the_id_and_the_layer_only():
    def experts(layer):
        config = MoEConfig.model_validate({"d_ff": 4, "num_experts": 8, "router": {"kind": "hash"}})
        ids = torch.arange(4000)
        return make_router(config, d_model=6, layer=layer)(torch.zeros(4000, 6), ids).expert_S

    assert torch.equal(experts(0), experts(0))
    assert float((experts(0) == experts(1)).float().mean()) == pytest.approx(1 / 8, abs=0.02)
    counts = torch.bincount(experts(0), minlength=8)
    assert counts.min() > 420
    assert counts.max() < 580


def test_hash_of_an_id_never_changes():
    """Checkpoints depend on these: lowbias32 by its C code."""
    assert mixed(torch.tensor([0, 1, 2, 1000])).tolist() == [0, 1753845952, 3507691905, 1407151442]


def test_hash_needs_ids():
    config = MoEConfig.model_validate({"d_ff": 4, "num_experts": 8, "router": {"kind": "hash"}})
    with pytest.raises(ValueError, match="pass token_ids_BT"):
        MoE(config, d_model=6, use_bias=False, layer=0)(X.unsqueeze(0))


def test_sinkhorn_plan_has_even_columns_and_rows_of_one():
    logits = 3 * torch.randn(64, 8, generator=torch.Generator().manual_seed(2))
    plan = sinkhorn(logits.double(), 200).exp()
    torch.testing.assert_close(plan.sum(1), torch.ones(64).double())
    torch.testing.assert_close(plan.sum(0), torch.full((8,), 8.0).double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["sinkhorn", "auction"])
def test_training_is_balanced_and_use_is_greedy(kind):
    made = router(kind=kind)
    skewed = X + 1.0
    greedy = skewed @ made.weight.T
    trained = loads(made(skewed))
    assert trained.max() <= (8 if kind == "auction" else 16)
    assert loads(made.eval()(skewed)).max() > trained.max()
    assert torch.equal(made(skewed).expert_S, greedy.argmax(-1))


@settings(max_examples=40, deadline=None)
@given(num_tokens=st.integers(1, 6), num_experts=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_auction_is_within_its_tolerance_of_the_best_assignment(num_tokens, num_experts, seed):
    scores = torch.randn(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed))
    capacity = -(-num_tokens // num_experts)
    found = auction(scores, tolerance=0.01).tolist()
    assert max(map(found.count, found)) <= capacity

    def total(experts):
        return sum(scores[t, e].item() for t, e in enumerate(experts))

    best = max(
        total(experts)
        for experts in itertools.product(range(num_experts), repeat=num_tokens)
        if max(map(experts.count, experts)) <= capacity
    )
    spread = float(scores.max() - scores.min())
    assert total(found) >= best - num_tokens * 0.01 * spread - 1e-6


def test_auction_ends_whatever_it_is_given():
    scores = torch.tensor([[torch.nan, 1.0], [torch.inf, -torch.inf], [0.0, 0.0], [0.0, 0.0]])
    assert sorted(auction(scores, tolerance=0.01).tolist()) == [0, 0, 1, 1]
    assert sorted(auction(torch.zeros(4, 2), tolerance=0.01).tolist()) == [0, 0, 1, 1]
    assert auction(torch.zeros(0, 2), tolerance=0.01).tolist() == []
