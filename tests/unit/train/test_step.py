"""One optimizer step: gradients of the whole batch, clipping, recomputation, non-finite values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lmworks.base.errors import TrainingError
from lmworks.data.loader import Batch
from lmworks.data.shard import ShardSet
from lmworks.train.recipe import Recipe
from lmworks.train.state import TrainingState
from lmworks.train.step import NonFiniteError, TrainStep

MakeRecipe = Callable[..., Recipe]


class RecordingOptimizer:
    """Keeps the scaled gradients of the last step and changes nothing."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.gradients: dict[str, Tensor] = {}

    def step(self, *, lr: float, grad_scale: float = 1.0) -> None:
        self.gradients = {
            name: p.grad.float() * grad_scale
            for name, p in self.model.named_parameters()
            if p.grad is not None
        }

    def zero_grad(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def make_step(recipe: Recipe, shards: ShardSet) -> tuple[TrainStep, RecordingOptimizer, Batch]:
    state = TrainingState(recipe, shards)
    optimizer = RecordingOptimizer(state.model)
    step = TrainStep(
        state.model,
        optimizer,
        micro_batch_size=recipe.train.micro_batch_size,
        num_micro_batches=recipe.train.batch_size // recipe.train.micro_batch_size,
        clip_norm=recipe.train.clip_norm,
        z_loss_weight=recipe.train.z_loss_weight,
    )
    return step, optimizer, state.loader.next_batch()


def with_uneven_targets(batch: Batch) -> Batch:
    """Ignore more targets in later rows, so that micro-batches weigh differently."""
    targets = batch.targets_BT.copy()
    for row in range(len(targets)):
        targets[row, : 4 * row] = -100
    return Batch(batch.inputs_BT, targets, batch.document_ids_BT)


@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_micro_batches_give_the_gradient_of_the_whole_batch(
    make_recipe: MakeRecipe, shards: ShardSet, micro_batch_size: int
) -> None:
    results = []
    for size in (4, micro_batch_size):
        recipe = make_recipe(train={"micro_batch_size": size, "z_loss_weight": 1e-2})
        step, optimizer, batch = make_step(recipe, shards)
        report = step(with_uneven_targets(batch), lr=0.0)
        results.append((report, optimizer.gradients))
    (whole, whole_gradients), (parts, parts_gradients) = results
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert parts.z_loss == pytest.approx(whole.z_loss, rel=1e-6)
    assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=1e-6)
    for name, gradient in whole_gradients.items():
        torch.testing.assert_close(parts_gradients[name], gradient, rtol=1e-5, atol=1e-7)


def test_loss_and_gradient_are_those_of_plain_cross_entropy(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    step, optimizer, batch = make_step(make_recipe(train={"clip_norm": 0}), shards)
    report = step(batch, lr=0.0)
    model = step.model
    for parameter in model.parameters():
        parameter.grad = None
    logits = model(torch.from_numpy(batch.inputs_BT))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.targets_BT).flatten())
    loss.backward()
    assert report.loss == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(optimizer.gradients[name], parameter.grad, rtol=1e-4, atol=1e-7)


def test_gradients_are_scaled_down_to_the_clip_norm(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    step, optimizer, batch = make_step(make_recipe(train={"clip_norm": 0.01}), shards)
    report = step(batch, lr=0.0)
    flat = torch.cat([gradient.flatten() for gradient in optimizer.gradients.values()])
    assert report.grad_norm > 0.01
    assert flat.norm().item() == pytest.approx(0.01, rel=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_activations_changes_neither_loss_nor_gradient(
    make_recipe: MakeRecipe, shards: ShardSet, dropout: float
) -> None:
    results = []
    for kind in ("none", "full"):
        recipe = make_recipe(model={"dropout": dropout}, train={"activation_checkpointing": kind})
        step, optimizer, batch = make_step(recipe, shards)
        report = step(batch, lr=0.0)
        results.append((report, list(optimizer.gradients.values())))
    assert results[0][0] == results[1][0]
    for plain, recomputed in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(plain, recomputed)


def test_recomputing_activations_keeps_fewer_tensors(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    saved_bytes = {}
    for kind in ("none", "full"):
        step, _, batch = make_step(make_recipe(train={"activation_checkpointing": kind}), shards)
        sizes: list[int] = []

        def note(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            step.model.train_hidden(torch.from_numpy(batch.inputs_BT))
        saved_bytes[kind] = sum(sizes)
    assert saved_bytes["full"] < saved_bytes["none"] / 2


def test_bf16_gradients_of_several_micro_batches_are_summed_in_fp32(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    recipe = make_recipe(train={"precision": "bf16", "micro_batch_size": 1})
    step, _, batch = make_step(recipe, shards)
    step(batch, lr=0.0)
    parameters = list(step.model.parameters())
    assert {p.dtype for p in parameters} == {torch.bfloat16}
    assert {p.grad.dtype for p in parameters if p.grad is not None} == {torch.float32}


def test_bf16_accumulation_is_as_exact_as_one_batch(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    exact_step, exact, batch = make_step(make_recipe(), shards)
    exact_step(batch, lr=0.0)
    errors = {}
    for size in (4, 1):
        recipe = make_recipe(train={"precision": "bf16", "micro_batch_size": size})
        step, optimizer, _ = make_step(recipe, shards)
        step(batch, lr=0.0)
        errors[size] = sum(
            float((optimizer.gradients[name] - gradient).square().sum())
            for name, gradient in exact.gradients.items()
        )
    assert errors[1] < 1.5 * errors[4]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_the_update(
    make_recipe: MakeRecipe, shards: ShardSet, value: float
) -> None:
    step, optimizer, batch = make_step(make_recipe(), shards)
    with torch.no_grad():
        step.model.embed.weight.fill_(value)
    with pytest.raises(NonFiniteError, match="loss is"):
        step(batch, lr=1.0)
    assert optimizer.gradients == {}


def test_a_batch_without_targets_is_refused(make_recipe: MakeRecipe, shards: ShardSet) -> None:
    step, _, batch = make_step(make_recipe(), shards)
    ignored = np.full_like(batch.targets_BT, -100)
    with pytest.raises(TrainingError, match="no target tokens"):
        step(Batch(batch.inputs_BT, ignored, None), lr=0.0)


def test_documents_are_kept_apart_when_the_batch_says_so(
    make_recipe: MakeRecipe, shards: ShardSet
) -> None:
    losses = []
    for separate in (False, True):
        recipe = make_recipe(loader={"separate_documents": separate})
        step, _, batch = make_step(recipe, shards)
        losses.append(step(batch, lr=0.0).loss)
    assert losses[0] != losses[1]
