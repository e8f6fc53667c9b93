"""Sorting by expert, and who is dropped where one is full."""

import torch

from lmworks.nn.config import MoEConfig
from lmworks.nn.moe.dispatch import dispatch
from lmworks.nn.moe.layer import MoE

EXPERT = torch.tensor([1, 0, 1, 1, 0, 1])
WEIGHT = torch.tensor([0.2, 0.5, 0.9, 0.2, 0.1, 0.4])


def send(capacity, drop="score"):
    return dispatch(EXPERT, WEIGHT, num_experts=3, capacity=capacity, drop=drop)


def test_pairs_are_sorted_by_expert_and_keep_their_order():
    sent = send(None)
    assert sent.order_S.tolist() == [1, 4, 0, 2, 3, 5]
    assert sent.ends_E.tolist() == [2, 6, 6]
    assert sent.chosen_E.tolist() == [2, 4, 0]


def test_lowest_weights_are_dropped_and_of_equal_ones_the_later():
    sent = send(3)
    assert sent.ends_E.tolist() == [2, 5, 5]
    assert sent.order_S[2:5].tolist() == [2, 5, 0]
    assert sent.order_S[5:].tolist() == [3]  # as 0, but later
    assert sent.chosen_E.tolist() == [2, 4, 0]


def test_latest_are_dropped_by_position():
    sent = send(2, "position")
    assert sent.order_S[:4].tolist() == [1, 4, 0, 2]
    assert sorted(sent.order_S[4:].tolist()) == [3, 5]


def layer(**values):
    config = MoEConfig.model_validate(
        {"d_ff": 6, "num_experts": 4, "router": {"top_k": 1, "normalize": False}} | values
    )
    moe = MoE(config, d_model=8, use_bias=False, layer=0)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in moe.parameters():
            weight.normal_(generator=g)
    return moe


X = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(1))


def test_a_full_expert_drops_what_is_over_and_counts_it():
    moe = layer(capacity_factor=1.0)
    y, routing = moe(X)
    over = (routing.tokens_per_expert - 8).clamp(min=0).sum()
    assert int(routing.num_dropped) == int(over) > 0
    assert int((y == 0).all(-1).sum()) == int(over)  # one expert per token: nothing is left


def test_enough_capacity_drops_nothing():
    y, routing = layer(capacity_factor=4.0)(X)
    wanted, _ = layer()(X)
    assert int(routing.num_dropped) == 0
    torch.testing.assert_close(y, wanted)


def test_outside_training_nothing_is_dropped():
    y, routing = layer(capacity_factor=0.25).eval()(X)
    assert int(routing.num_dropped) == 0
    torch.testing.assert_close(y, layer()(X)[0])


def test_capacity_is_the_even_share_times_the_factor_rounded_up():
    config = layer(capacity_factor=1.25).config
    assert config.capacity(16) == 5
    assert config.capacity(17) == 6
    assert config.capacity(1) == 1
