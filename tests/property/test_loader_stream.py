"""The loader's stream is a function of its seed: any stop, resume, split or world size keeps it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmworks.data.loader import IGNORE_INDEX, Loader, Order, permute
from lmworks.data.shard import ShardSet, ShardWriter, open_shards

MAX_TOKENS = 64
# The machine may be busy; these examples have no time limit of their own.
unhurried = settings(deadline=None)
ORDERS: Sequence[Order] = ("shuffled", "random", "sequential")


@pytest.fixture(scope="module")
def shard_sets(tmp_path_factory: pytest.TempPathFactory) -> list[ShardSet]:
    """For each N: N distinct ids 0 .. N-1, so that an id tells its place; shards of about 7."""
    sets = []
    for num_tokens in range(1, MAX_TOKENS + 1):
        folder: Path = tmp_path_factory.mktemp(f"n{num_tokens}")
        with ShardWriter(
            folder, vocab_size=num_tokens, eot_id=num_tokens - 1, max_shard_tokens=7
        ) as writer:
            lengths = [3] * (num_tokens // 3) + [1] * (num_tokens % 3)
            writer.append(np.arange(num_tokens), np.array(lengths), text_bytes=num_tokens)
            writer.finish(tokenizer_kind="fake", tokenizer_fingerprint="f" * 64, sources=())
        sets.append(open_shards(folder))
    return sets


@dataclass(frozen=True)
class Setting:
    num_tokens: int
    context_length: int
    seed: int
    order: Order

    def loader(
        self, sets: list[ShardSet], batch_size: int, *, rank: int = 0, world_size: int = 1
    ) -> Loader:
        return Loader(
            sets[self.num_tokens - 1],
            batch_size=batch_size,
            context_length=self.context_length,
            seed=self.seed,
            order=self.order,
            rank=rank,
            world_size=world_size,
        )


@st.composite
def streams(draw: st.DrawFn, orders: Sequence[Order] = ORDERS) -> Setting:
    num_tokens = draw(st.integers(1, MAX_TOKENS))
    return Setting(
        num_tokens,
        draw(st.integers(1, num_tokens)),
        draw(st.integers(0, 2**40)),
        draw(st.sampled_from(orders)),
    )


def rows(loader: Loader, num_batches: int) -> list[list[int]]:
    """Inputs and targets of that many batches, one list per row."""
    batches = [loader.next_batch() for _ in range(num_batches)]
    return [
        [*inputs, *targets]
        for batch in batches
        for inputs, targets in zip(batch.inputs_BT.tolist(), batch.targets_BT.tolist(), strict=True)
    ]


@unhurried
@given(setting=streams(), batch_size=st.integers(1, 5), stops=st.lists(st.integers(0, 7)))
def test_a_stream_resumed_at_any_points_equals_the_uninterrupted_one(
    shard_sets: list[ShardSet], setting: Setting, batch_size: int, stops: list[int]
) -> None:
    whole = rows(setting.loader(shard_sets, batch_size), sum(stops) + 1)
    resumed: list[list[int]] = []
    state = setting.loader(shard_sets, batch_size).state_dict()
    for stop in [*stops, 1]:
        loader = setting.loader(shard_sets, batch_size)
        loader.load_state_dict(json.loads(json.dumps(state)))
        resumed += rows(loader, stop)
        state = loader.state_dict()
    assert resumed == whole


@unhurried
@given(setting=streams(["shuffled", "random"]), small=st.integers(1, 4), factor=st.integers(1, 4))
def test_the_stream_does_not_depend_on_the_batch_size(
    shard_sets: list[ShardSet], setting: Setting, small: int, factor: int
) -> None:
    large = rows(setting.loader(shard_sets, small * factor), 3)
    assert rows(setting.loader(shard_sets, small), 3 * factor) == large


@unhurried
@given(setting=streams(), rows_per_rank=st.integers(1, 3), sizes=st.tuples(st.integers(1, 4)))
def test_a_batch_does_not_depend_on_the_world_size_even_when_it_changes_on_resume(
    shard_sets: list[ShardSet], setting: Setting, rows_per_rank: int, sizes: tuple[int, ...]
) -> None:
    batch_size = rows_per_rank * 12
    alone = setting.loader(shard_sets, batch_size)
    state = alone.state_dict()
    for world_size in (*sizes, 3):
        ranks = [
            setting.loader(shard_sets, batch_size, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for loader in ranks:
            loader.load_state_dict(state)
        assert [row for loader in ranks for row in rows(loader, 1)] == rows(alone, 1)
        states = [loader.state_dict() for loader in ranks]
        assert states == [alone.state_dict()] * world_size
        state = states[0]


@unhurried
@given(setting=streams(["shuffled"]), epoch=st.integers(0, 3))
def test_an_epoch_has_every_token_once_as_a_target_but_for_the_rest_of_the_division(
    shard_sets: list[ShardSet], setting: Setting, epoch: int
) -> None:
    loader = setting.loader(shard_sets, 1)
    num_windows = setting.num_tokens // setting.context_length
    rows(loader, epoch * num_windows)
    targets = [t for row in rows(loader, num_windows) for t in row[setting.context_length :]]
    assert len(targets) == num_windows * setting.context_length
    assert len(set(targets)) == len(targets)


@unhurried
@given(setting=streams(), batch_size=st.integers(1, 5))
def test_every_input_is_the_token_just_before_its_target(
    shard_sets: list[ShardSet], setting: Setting, batch_size: int
) -> None:
    for row in rows(setting.loader(shard_sets, batch_size), 4):
        inputs, targets = row[: setting.context_length], row[setting.context_length :]
        for token, target in zip(inputs, targets, strict=True):
            assert target == IGNORE_INDEX or token == (target - 1) % setting.num_tokens


@unhurried
@given(
    setting=streams(["sequential"]),
    batch_size=st.integers(1, 5),
    longer=st.integers(0, 5),
)
def test_a_sequential_pass_has_every_token_exactly_once_as_a_target_in_order(
    shard_sets: list[ShardSet], setting: Setting, batch_size: int, longer: int
) -> None:
    loader = Loader(
        shard_sets[setting.num_tokens - 1],
        batch_size=batch_size,
        context_length=setting.context_length + longer,
        order="sequential",
    )
    for _ in range(2):
        batches = list(loader.one_pass())
        assert all(b.targets_BT.shape == b.inputs_BT.shape for b in batches)
        assert {len(b.targets_BT) for b in batches} == {batch_size}
        targets = np.concatenate([b.targets_BT.ravel() for b in batches])
        assert targets[targets != IGNORE_INDEX].tolist() == [*range(setting.num_tokens)]


@unhurried
@given(
    size=st.one_of(st.integers(1, 300), st.integers(1, 2**40)),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 2**20),
)
def test_permute_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    index = np.arange(min(size, 300))
    images = permute(index, size, seed, epoch)
    assert len(set(images.tolist())) == len(index)
    assert images.min() >= 0
    assert images.max() < size


@unhurried
@given(seed=st.integers(0, 2**40))
def test_seeds_and_epochs_give_different_orders(seed: int) -> None:
    index = np.arange(50)
    orders = [permute(index, 50, s, e).tolist() for s, e in [(seed, 0), (seed + 1, 0), (seed, 1)]]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]


@unhurried
@given(setting=streams(["shuffled", "random"]), other=st.integers(0, 2**40))
def test_another_seed_gives_another_stream(
    shard_sets: list[ShardSet], setting: Setting, other: int
) -> None:
    assume(other != setting.seed and setting.num_tokens > 8)
    changed = Setting(setting.num_tokens, setting.context_length, other, setting.order)
    assert rows(setting.loader(shard_sets, 1), 40) != rows(changed.loader(shard_sets, 1), 40)
