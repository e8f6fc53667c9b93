"""Balance losses by hand, their convention, and the bias that needs none."""

import pytest
import torch

from lmworks.nn.config import BalanceConfig
from lmworks.nn.moe.balance import (
    Routing,
    device_loss,
    entropy_sum,
    router_z_loss,
    routing_losses,
    sequence_loss,
    switch_loss,
    update_selection_bias,
)
from lmworks.nn.moe.choice import pairs

PROBS = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.4, 0.4, 0.1, 0.1]], dtype=torch.float64)
CHOSEN = torch.tensor([2, 2, 0, 0])  # two experts per token


def test_even_loads_and_probabilities_give_one():
    even, counts = torch.full((8, 4), 0.25), torch.full((4,), 4)
    token, expert = torch.arange(8).repeat_interleave(2), torch.arange(16) % 4
    assert float(switch_loss(even, counts)) == 1
    assert float(device_loss(even, counts, 2)) == 1
    assert float(sequence_loss(even, token, expert, 4)) == 1


def test_switch_loss_by_hand():
    # f = (2, 2, 0, 0), P = (0.45, 0.35, 0.1, 0.1)
    assert float(switch_loss(PROBS, CHOSEN)) == pytest.approx(2 * 0.45 + 2 * 0.35)


def test_device_loss_by_hand():
    # Devices (0, 1) and (2, 3): mean f = (2, 0), sum of P = (0.8, 0.2).
    assert float(device_loss(PROBS, CHOSEN, 2)) == pytest.approx(2 * 0.8)
    # One expert per device is the Switch loss.
    assert float(device_loss(PROBS, CHOSEN, 4)) == float(switch_loss(PROBS, CHOSEN))


def test_sequence_loss_looks_at_each_sequence_alone():
    # Over both sequences loads are even; in each of them one expert takes all.
    probs = torch.tensor([[0.9, 0.1]] * 2 + [[0.1, 0.9]] * 2)
    token, expert = torch.arange(4), torch.tensor([0, 0, 1, 1])
    assert float(sequence_loss(probs, token, expert, 2)) == pytest.approx(1.8)
    assert float(sequence_loss(probs, token, expert, 4)) == pytest.approx(1.0)


def test_router_z_loss_is_the_mean_squared_logsumexp():
    logits = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    expected = (logits.exp().sum(1).log() ** 2).mean()
    assert float(router_z_loss(logits)) == pytest.approx(float(expected))


def test_losses_are_weighted_sums_over_tokens():
    logits = PROBS.log()
    choice = pairs(torch.tensor([[0, 1], [0, 1]]), PROBS[:, :2], logits, PROBS)
    config = BalanceConfig(
        switch_weight=0.5, device_weight=0.25, num_devices=2, sequence_weight=0.1, z_weight=2.0
    )
    balance, z = routing_losses(config, choice, CHOSEN, sequence_length=1)
    expected = 0.5 * switch_loss(PROBS, CHOSEN) + 0.25 * device_loss(PROBS, CHOSEN, 2)
    expected += 0.1 * sequence_loss(PROBS, choice.token_S, choice.expert_S, 1)
    assert float(balance) == pytest.approx(2 * float(expected))
    assert float(z) == pytest.approx(2 * 2.0 * float(router_z_loss(logits)), abs=1e-12)


def test_gradient_pushes_the_busy_expert_down():
    logits = torch.zeros(6, 3, requires_grad=True)
    switch_loss(logits.softmax(-1), torch.tensor([6, 0, 0])).backward()
    assert (logits.grad[:, 0] > 0).all()
    assert (logits.grad[:, 1:] < 0).all()


def test_entropy_is_that_of_each_token():
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert float(entropy_sum(probs, probs)) == pytest.approx(torch.tensor(2.0).log().item())


def test_bias_moves_by_the_rate_towards_the_mean_load():
    bias = torch.zeros(4)
    update_selection_bias(bias, torch.tensor([10, 4, 2, 0]), rate=0.001)
    assert bias.tolist() == pytest.approx([-0.001, 0.0, 0.001, 0.001])


def test_bias_evens_loads_without_a_loss():
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(512, 8, generator=g) + torch.linspace(0, 3, 8)
    bias = torch.zeros(8)
    for _ in range(2000):
        loads = torch.bincount((scores + bias).topk(2).indices.flatten(), minlength=8)
        update_selection_bias(bias, loads, rate=0.005)
    assert loads.max() < 1.15 * 128
    assert loads.min() > 0.85 * 128


def test_stacked_routing_has_a_row_per_layer():
    one = Routing(*(torch.tensor(float(i)) for i in range(5)))
    two = one._replace(z_loss=torch.tensor(7.0))
    assert Routing.stack([one, two]).z_loss.tolist() == [1.0, 7.0]
