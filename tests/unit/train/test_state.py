"""Going back to a snapshot repeats the run bit for bit, whatever the optimizer and precision."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmworks.base.errors import CheckpointError
from lmworks.data.shard import ShardSet
from lmworks.train.checkpoint import read_snapshot, write_snapshot
from lmworks.train.compile import compile_blocks
from lmworks.train.recipe import Recipe
from lmworks.train.state import TrainingState
from lmworks.train.step import TrainStep

MakeRecipe = Callable[..., Recipe]


def losses(state: TrainingState, num_steps: int) -> list[float]:
    train = state.recipe.train
    step = TrainStep(
        state.model,
        state.optimizer,
        micro_batch_size=train.micro_batch_size,
        num_micro_batches=train.batch_size // train.micro_batch_size,
        clip_norm=train.clip_norm,
        z_loss_weight=train.z_loss_weight,
    )
    state.model.train()
    found = []
    for _ in range(num_steps):
        found.append(step(state.loader.next_batch(), lr=1e-2).loss)
        state.step += 1
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("micro_batch_size", [4, 2])
def test_a_restored_state_repeats_every_loss_bit_for_bit(
    make_recipe: MakeRecipe,
    shards: ShardSet,
    tmp_path: Path,
    *,
    optimizer: str,
    precision: str,
    micro_batch_size: int,
) -> None:
    recipe = make_recipe(
        model={"dropout": 0.2},
        optim={"kind": optimizer},
        train={
            "precision": precision,
            "micro_batch_size": micro_batch_size,
            "activation_checkpointing": "full",
        },
    )
    straight = TrainingState(recipe, shards)
    losses(straight, 3)
    write_snapshot(tmp_path / "step-3", straight.snapshot())
    expected = losses(straight, 4)

    resumed = TrainingState(recipe, shards)
    torch.manual_seed(99)
    resumed.restore(read_snapshot(tmp_path / "step-3"), where="step-3")
    assert losses(resumed, 4) == expected
    weights, others = straight.snapshot().weights, resumed.snapshot().weights
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_bf16_training_starts_from_unrounded_masters(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    exact = TrainingState(make_recipe(), shards).snapshot().weights
    state = TrainingState(make_recipe(train={"precision": "bf16"}), shards)
    for name, weight in state.snapshot().weights.items():
        assert torch.equal(weight, exact[name])
        assert torch.equal(state.model.get_parameter(name), weight.bfloat16())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_wrapped_blocks_keep_their_names_in_a_checkpoint(
    make_recipe: MakeRecipe, shards: ShardSet, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    recipe = make_recipe(optim={"kind": optimizer}, train={"activation_checkpointing": "full"})
    state = TrainingState(recipe, shards)
    compile_blocks(state.model)
    assert any(".block." in name for name, _ in state.model.named_parameters())
    snapshot = state.snapshot()
    assert snapshot.weights.keys() == recipe.model.weight_shapes().keys()
    assert not [name for name in snapshot.optimizer if ".block." in name]


def test_a_checkpoint_holds_the_model_once_in_fp32(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    snapshot = TrainingState(make_recipe(train={"precision": "bf16"}), shards).snapshot()
    assert {weight.dtype for weight in snapshot.weights.values()} == {torch.float32}
    assert not [name for name in snapshot.optimizer if "master" in name]


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("model", {"d_model": 32}, "d_model: 16 in the checkpoint, 32 here"),
        ("optim", {"kind": "sgd"}, "another model or optimizer"),
        ("train", {"seed": 7}, "seed was 0, is now 7"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    make_recipe: MakeRecipe,
    shards: ShardSet,
    section: str,
    change: dict[str, Any],
    message: str,
) -> None:
    snapshot = TrainingState(make_recipe(), shards).snapshot()
    other = TrainingState(make_recipe(**{section: change}), shards)
    with pytest.raises(CheckpointError, match=message):
        other.restore(snapshot, where="step-0")
