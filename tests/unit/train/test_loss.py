"""Further targets stay in their row and document; losses add up; drafts of a trained model hold."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lmworks.data.loader import Batch
from lmworks.data.shard import ShardSet
from lmworks.train.loss import further_targets, training_losses
from lmworks.train.recipe import Recipe
from lmworks.train.state import TrainingState
from lmworks.train.step import TrainStep

MakeRecipe = Callable[..., Recipe]
KINDS = ["sequential", "parallel"]


def make_step(state: TrainingState) -> TrainStep:
    train = state.recipe.train
    return TrainStep(
        state.model,
        state.optimizer,
        micro_batch_size=train.micro_batch_size,
        num_micro_batches=train.batch_size // train.micro_batch_size,
        clip_norm=train.clip_norm,
        z_loss_weight=train.z_loss_weight,
    )


def test_a_further_target_is_the_token_after_the_target() -> None:
    targets = torch.tensor([[11, 12, 13, -100]])
    assert further_targets(targets, None, depth=1).tolist() == [[12, 13, -100, -100]]
    assert further_targets(targets, None, depth=2).tolist() == [[13, -100, -100, -100]]


def test_a_depth_beyond_the_row_has_no_target() -> None:
    targets = torch.tensor([[11, 12]])
    assert further_targets(targets, None, depth=5).tolist() == [[-100, -100]]


def test_no_further_target_lies_across_a_document_border() -> None:
    # The last target of a document is the end-of-text token that opens the next one.
    documents = torch.tensor([[0, 0, 0, 1, 1]])
    targets = torch.tensor([[2, 3, 0, 5, 6]])
    assert further_targets(targets, documents, depth=1).tolist() == [[3, 0, -100, 6, -100]]
    assert further_targets(targets, documents, depth=2).tolist() == [[0, -100, -100, -100, -100]]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_packed_documents_are_those_of_each_alone(
    make_recipe: MakeRecipe, shards: ShardSet, kind: str
) -> None:
    model = TrainingState(make_recipe(model={"mtp": {"kind": kind, "depth": 2}}), shards).model
    tokens = torch.randint(1, 40, (1, 16), generator=torch.Generator().manual_seed(0))
    targets = torch.randint(1, 40, (1, 16), generator=torch.Generator().manual_seed(1))
    lengths = [5, 1, 2, 8]
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    packed = training_losses(model, tokens, targets, ids, z_loss_weight=0.0)
    alone = [
        training_losses(model, *pieces, None, z_loss_weight=0.0)
        for pieces in zip(tokens.split(lengths, 1), targets.split(lengths, 1), strict=True)
    ]
    total = torch.stack([losses.total for losses in alone]).sum()
    torch.testing.assert_close(packed.total, total, rtol=1e-5, atol=1e-4)
    assert packed.mtp_num_tokens_D.tolist() == [4 + 0 + 1 + 7, 3 + 0 + 0 + 6]


def test_the_total_is_the_weighted_sum(make_recipe: MakeRecipe, shards: ShardSet) -> None:
    mtp = {"kind": "sequential", "depth": 2, "loss_weight": 0.5}
    state = TrainingState(make_recipe(model={"mtp": mtp}), shards)
    batch = state.loader.next_batch()
    inputs, targets = torch.from_numpy(batch.inputs_BT), torch.from_numpy(batch.targets_BT)
    losses = training_losses(state.model, inputs, targets, None, z_loss_weight=0.1)
    expected = losses.loss_sum + losses.z_loss_sum + 0.5 / 2 * losses.mtp_loss_sums_D.sum()
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_report_and_train_as_the_whole_batch(
    make_recipe: MakeRecipe, shards: ShardSet, kind: str
) -> None:
    reports, weights = [], []
    for size in (4, 1):
        recipe = make_recipe(
            model={"mtp": {"kind": kind, "depth": 2}},
            optim={"kind": "sgd"},
            train={"micro_batch_size": size},
        )
        state = TrainingState(recipe, shards)
        batch = state.loader.next_batch()
        targets = batch.targets_BT.copy()
        targets[0, :9] = -100  # so that micro-batches weigh differently
        reports.append(make_step(state)(Batch(batch.inputs_BT, targets, None), lr=0.1))
        weights.append(state.model.state_dict())
    whole, parts = reports
    assert parts.mtp_losses == pytest.approx(whole.mtp_losses, rel=1e-6)
    assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=1e-6)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_recomputing_activations_changes_nothing(
    make_recipe: MakeRecipe, shards: ShardSet, kind: str
) -> None:
    reports = []
    for how in ("none", "full"):
        recipe = make_recipe(
            model={"mtp": {"kind": kind}, "dropout": 0.2},
            train={"activation_checkpointing": how},
        )
        state = TrainingState(recipe, shards)
        state.model.train()
        reports.append(make_step(state)(state.loader.next_batch(), lr=0.1))
    assert reports[0] == reports[1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_of_the_heads_is_trained(
    make_recipe: MakeRecipe, shards: ShardSet, kind: str
) -> None:
    state = TrainingState(make_recipe(model={"mtp": {"kind": kind, "depth": 2}}), shards)
    before = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    make_step(state)(state.loader.next_batch(), lr=0.1)
    unchanged = [n for n, p in state.model.named_parameters() if torch.equal(p, before[n])]
    assert unchanged == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_model_drafts_what_comes(
    make_recipe: MakeRecipe, shards: ShardSet, kind: str
) -> None:
    mtp = {"kind": kind, "depth": 2, "loss_weight": 1.0}
    state = TrainingState(make_recipe(model={"mtp": mtp}, train={"steps": 60}), shards)
    step = make_step(state)
    for _ in range(60):
        report = step(state.loader.next_batch(), lr=1e-2)
    # The text counts up by threes within a document: all but its ends can be known.
    assert max(report.mtp_losses) < 1.5 < np.log(40)
    tokens = torch.from_numpy(state.loader.next_batch().inputs_BT)
    drafts = state.model.eval().draft(tokens)
    for depth in (1, 2):
        # Accepted is a draft that the model itself would choose there (greedy speculation).
        is_accepted = drafts[:, : -depth or None, depth] == drafts[:, depth:, 0]
        assert float(is_accepted.float().mean()) > 0.5
