"""Training a mixture of experts: losses of routers, biases, figures, and exactness of it all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmworks.data.loader import Batch
from lmworks.data.shard import ShardSet
from lmworks.nn.moe.balance import Routing
from lmworks.train.checkpoint import read_snapshot, write_snapshot
from lmworks.train.evaluate import loss_sum
from lmworks.train.loss import training_losses
from lmworks.train.recipe import Recipe
from lmworks.train.routing import RoutingReport, RoutingSums
from lmworks.train.state import TrainingState
from lmworks.train.step import NonFiniteError, StepReport, TrainStep

MakeRecipe = Callable[..., Recipe]
BIASED = {
    "router": {"kind": "topk", "top_k": 2, "selection_bias": True},
    "balance": {"switch_weight": 0.01, "z_weight": 1e-3, "bias_rate": 0.01},
}
ROUTERS: dict[str, dict[str, Any]] = {
    "bias": BIASED,
    "switch": {"router": {"kind": "topk", "top_k": 2}},
    "capacity": {"router": {"kind": "topk", "top_k": 2}, "capacity_factor": 1.0},
    "noisy": {"router": {"kind": "noisy_topk"}},
    "expert_choice": {"router": {"kind": "expert_choice"}},
    "hash": {"router": {"kind": "hash"}},
    "sinkhorn": {"router": {"kind": "sinkhorn"}},
    "auction": {"router": {"kind": "auction"}},
}


def moe(**changes: Any) -> dict[str, Any]:
    return {"kind": "moe", "d_ff": 8, "num_experts": 4, **changes}


def moe_model(mlp: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"mlp": moe(**mlp), "mtp": {"kind": "sequential"}, **changes}


def make_state(make_recipe: MakeRecipe, shards: ShardSet, **sections: Any) -> TrainingState:
    return TrainingState(make_recipe(sample={"prompts": []}, **sections), shards)


def make_step(state: TrainingState) -> TrainStep:
    train = state.recipe.train
    state.model.train()
    return TrainStep(
        state.model,
        state.optimizer,
        micro_batch_size=train.micro_batch_size,
        num_micro_batches=train.batch_size // train.micro_batch_size,
        clip_norm=train.clip_norm,
        z_loss_weight=train.z_loss_weight,
    )


def biases(state: TrainingState) -> list[torch.Tensor]:
    weights = state.snapshot().weights
    return [weight.clone() for name, weight in weights.items() if name.endswith("router.bias")]


def figures(report: StepReport) -> tuple[Any, ...]:
    assert report.routing is not None
    return report.loss, report.mtp_losses, report.routing.scalars(), report.routing.table()


def test_figures_of_known_loads() -> None:
    routing = Routing(
        balance_loss=torch.tensor([6.0, 2.0]),
        z_loss=torch.tensor([1.0, 1.0]),
        tokens_per_expert=torch.tensor([[4, 4, 4, 4], [0, 0, 0, 16]]),
        entropy_sum=torch.tensor([8.0, 4.0]),
        num_dropped=torch.tensor([0, 8]),
    )
    sums = RoutingSums(routing, num_tokens=8)
    sums.add(routing, num_tokens=8)
    report = sums.report()
    assert (report.balance_loss, report.z_loss) == (1.0, 0.25)
    assert report.load_LE.tolist() == [[1.0] * 4, [0.0, 0.0, 0.0, 4.0]]
    assert report.load_entropy_L.tolist() == pytest.approx([1.0, 0.0])
    assert report.starved_L.tolist() == [0, 3]
    assert report.router_entropy_L.tolist() == [1.0, 0.5]
    assert report.dropped_L.tolist() == [0.0, 0.5]
    assert report.scalars()["starved_experts"] == 3
    assert report.table()["load_percent"] == [[100] * 4, [0, 0, 0, 400]]


def test_one_expert_is_balanced() -> None:
    one = RoutingReport(0.0, 0.0, torch.ones(2, 1), torch.zeros(2), torch.zeros(2))
    assert one.load_entropy_L.tolist() == [1.0, 1.0]


def test_losses_of_routers_are_added_for_every_token(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    state = make_state(make_recipe, shards, model=moe_model(BIASED))
    state.model.train()
    batch = state.loader.next_batch()
    inputs, targets = torch.from_numpy(batch.inputs_BT), torch.from_numpy(batch.targets_BT)
    losses = training_losses(
        state.model, inputs, targets, None, z_loss_weight=0.0, target_share=0.5
    )
    assert losses.routing is not None
    assert losses.routing.tokens_per_expert.shape == (3, 4)  # two layers and one further depth
    assert bool((losses.routing.balance_loss > 0).all() and (losses.routing.z_loss > 0).all())
    routers = losses.routing.balance_loss.sum() + losses.routing.z_loss.sum()
    expected = losses.loss_sum.item() + 0.3 * losses.mtp_loss_sums_D.item() + 0.5 * routers.item()
    assert losses.total.item() == pytest.approx(expected, rel=1e-6)


def test_ignored_targets_do_not_change_the_weight_of_the_balance_loss(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    """Without any gradient of the loss proper, what is left is that of the mean router loss."""
    norms = []
    for ignored in (0, 12):
        model = moe_model(BIASED, mtp={"kind": "none"})
        state = make_state(make_recipe, shards, model=model, train={"clip_norm": 0})
        batch = state.loader.next_batch()
        targets = batch.targets_BT.copy()
        targets[:, :ignored] = -100
        step = make_step(state)
        with torch.no_grad():
            state.model.head.weight.zero_()  # logits that nothing changes
        step(Batch(batch.inputs_BT, targets, None), lr=0.0)
        router = state.model.layers[1].mlp.router.weight
        norms.append(float(router.grad.norm()) / (targets >= 0).sum())
    assert norms[0] > 0
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


def test_biases_move_by_the_loads_of_all_micro_batches(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    loads = []
    for size in (4, 1):
        state = make_state(
            make_recipe, shards, model=moe_model(BIASED), train={"micro_batch_size": size}
        )
        report = make_step(state)(state.loader.next_batch(), lr=0.0)
        assert report.routing is not None
        loads.append(report.routing.load_LE)
        expected = 0.01 * torch.sign(1 - report.routing.load_LE)
        assert torch.allclose(torch.stack(biases(state)), expected.float())
        assert bool(expected.any())
    assert torch.equal(loads[0], loads[1])


def test_evaluation_moves_no_bias(make_recipe: MakeRecipe, shards: ShardSet) -> None:
    state = make_state(make_recipe, shards, model=moe_model(BIASED))
    batch = state.loader.next_batch()
    with torch.no_grad():
        loss_sum(state.model.eval(), batch.inputs_BT, batch.targets_BT)
    assert not any(bias.any() for bias in biases(state))


def test_a_failed_step_moves_no_bias(make_recipe: MakeRecipe, shards: ShardSet) -> None:
    state = make_state(make_recipe, shards, model=moe_model(BIASED))
    step = make_step(state)
    with torch.no_grad():
        state.model.embed.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteError):
        step(state.loader.next_batch(), lr=1.0)
    assert not any(bias.any() for bias in biases(state))


@pytest.mark.parametrize("router", ROUTERS)
def test_recomputing_activations_changes_nothing(
    make_recipe: MakeRecipe, shards: ShardSet, router: str
) -> None:
    found = []
    for how in ("none", "full"):
        state = make_state(
            make_recipe,
            shards,
            model=moe_model(ROUTERS[router], dropout=0.1),
            train={"activation_checkpointing": how, "micro_batch_size": 2},
        )
        step = make_step(state)
        found.append([figures(step(state.loader.next_batch(), lr=1e-2)) for _ in range(3)])
    assert found[0] == found[1]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_restored_state_repeats_every_step_bit_for_bit(
    make_recipe: MakeRecipe, shards: ShardSet, tmp_path: Path, router: str, precision: str
) -> None:
    sections = {
        "model": moe_model(ROUTERS[router]),
        "optim": {"kind": "muon"},
        "train": {
            "precision": precision,
            "micro_batch_size": 2,
            "activation_checkpointing": "full",
        },
    }
    straight = make_state(make_recipe, shards, **sections)
    step = make_step(straight)
    for _ in range(2):
        step(straight.loader.next_batch(), lr=1e-2)
    write_snapshot(tmp_path / "step-2", straight.snapshot())
    expected = [figures(step(straight.loader.next_batch(), lr=1e-2)) for _ in range(3)]

    resumed = make_state(make_recipe, shards, **sections)
    torch.manual_seed(99)
    resumed.restore(read_snapshot(tmp_path / "step-2"), where="step-2")
    again = make_step(resumed)
    assert [figures(again(resumed.loader.next_batch(), lr=1e-2)) for _ in range(3)] == expected
    weights, others = straight.snapshot().weights, resumed.snapshot().weights
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_checkpoint_holds_the_biases_under_their_names(
    make_recipe: MakeRecipe, shards: ShardSet, precision: str
) -> None:
    train = {"precision": precision, "activation_checkpointing": "full"}
    state = make_state(make_recipe, shards, model=moe_model(BIASED), train=train)
    make_step(state)(state.loader.next_batch(), lr=0.0)
    weights = state.snapshot().weights
    assert weights.keys() == state.recipe.model.weight_shapes().keys()
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert all(bias.abs().max() == np.float32(0.01) for bias in biases(state))


def test_a_bias_evens_out_loads_that_are_uneven(make_recipe: MakeRecipe, shards: ShardSet) -> None:
    unevenness = {}
    for rate in (0.0, 0.02):
        mlp = {**BIASED, "balance": {"switch_weight": 0.0, "bias_rate": rate}}
        state = make_state(make_recipe, shards, model=moe_model(mlp, mtp={"kind": "none"}))
        step = make_step(state)
        loads = []
        for _ in range(60):
            report = step(state.loader.next_batch(), lr=3e-3).routing
            assert report is not None
            loads.append(report.load_LE)
        unevenness[rate] = float((torch.stack(loads[-20:]).mean(0) - 1).abs().mean())
    assert unevenness[0.02] < unevenness[0.0] / 2


def test_sampling_from_a_router_that_sees_later_tokens_is_refused(make_recipe: MakeRecipe) -> None:
    with pytest.raises(ValueError, match=r"expert_choice.*sample\.prompts=\[\]"):
        make_recipe(model={"mlp": moe(router={"kind": "expert_choice"})})


def test_tables_are_small_and_plain(make_recipe: MakeRecipe, shards: ShardSet) -> None:
    state = make_state(make_recipe, shards, model=moe_model(BIASED))
    report = make_step(state)(state.loader.next_batch(), lr=0.0).routing
    assert report is not None
    table = json.loads(json.dumps(report.table()))
    assert [len(row) for row in table["load_percent"]] == [4, 4, 4]
    assert all(isinstance(value, int) for row in table["load_percent"] for value in row)
