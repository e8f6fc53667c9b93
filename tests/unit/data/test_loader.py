"""What a batch looks like, and which states and settings are refused."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lmworks.base.errors import CheckpointError, ConfigError, DataError
from lmworks.data.loader import IGNORE_INDEX, Loader, permute
from lmworks.data.shard import ShardSet

MakeShards = Callable[..., ShardSet]
DOCUMENTS = [[1, 2, 3], [4], [5, 6, 7, 8]]
STREAM = [1, 2, 3, 9, 4, 9, 5, 6, 7, 8, 9]


@pytest.fixture
def shards(make_shards: MakeShards) -> ShardSet:
    return make_shards(DOCUMENTS)


def test_sequential_batches_walk_the_stream_behind_an_end_of_text_token(shards: ShardSet) -> None:
    loader = Loader(shards, batch_size=2, context_length=4, order="sequential")
    first, second = loader.one_pass()
    assert first.inputs_BT.tolist() == [[9, 1, 2, 3], [9, 4, 9, 5]]
    assert first.targets_BT.tolist() == [[1, 2, 3, 9], [4, 9, 5, 6]]
    assert second.inputs_BT[0, :3].tolist() == [6, 7, 8]
    assert second.targets_BT.tolist() == [[7, 8, 9, -100], [-100] * 4]


def test_batches_are_contiguous_int64_arrays_of_their_own(shards: ShardSet) -> None:
    batch = Loader(shards, batch_size=2, context_length=4).next_batch()
    for array in (batch.inputs_BT, batch.targets_BT):
        assert array.dtype == np.int64
        assert array.flags["C_CONTIGUOUS"]
    assert not np.shares_memory(batch.inputs_BT, batch.targets_BT)
    assert batch.document_ids_BT is None


def test_an_end_of_text_input_belongs_to_the_document_that_it_opens(shards: ShardSet) -> None:
    loader = Loader(
        shards, batch_size=1, context_length=10, order="sequential", separate_documents=True
    )
    batch = loader.next_batch()
    assert batch.inputs_BT.tolist() == [[9, 1, 2, 3, 9, 4, 9, 5, 6, 7]]
    assert batch.targets_BT.tolist() == [[1, 2, 3, 9, 4, 9, 5, 6, 7, 8]]
    assert batch.document_ids_BT is not None
    assert batch.document_ids_BT.dtype == np.int32
    assert batch.document_ids_BT.tolist() == [[0, 0, 0, 0, 1, 1, 2, 2, 2, 2]]


def test_document_ids_begin_at_zero_in_the_middle_of_a_document_too(shards: ShardSet) -> None:
    loader = Loader(
        shards, batch_size=2, context_length=3, order="sequential", separate_documents=True
    )
    ids = loader.next_batch().document_ids_BT
    assert ids is not None
    assert ids.tolist() == [[0, 0, 0], [0, 1, 1]]


def test_window_borders_differ_between_epochs(make_shards: MakeShards) -> None:
    shards = make_shards([list(range(59))], eot_id=59, vocab_size=60)
    loader = Loader(shards, batch_size=1, context_length=10)
    borders = [{int(loader.next_batch().targets_BT[0, 0]) % 10 for _ in range(6)} for _ in range(9)]
    assert all(len(epoch) == 1 for epoch in borders)
    assert len(set.union(*borders)) > 1


def test_random_windows_start_everywhere(make_shards: MakeShards) -> None:
    shards = make_shards([list(range(19))], eot_id=19, vocab_size=20)
    loader = Loader(shards, batch_size=4000, context_length=7, order="random")
    starts = Counter(loader.next_batch().targets_BT[:, 0].tolist())
    assert len(starts) == 20
    assert max(starts.values()) < 1.5 * min(starts.values())


def test_permute_sends_every_index_everywhere() -> None:
    # 3,000 epochs of 8 windows: 375 expected per cell, standard deviation 18.
    images = np.array([permute(np.arange(8), 8, 1, epoch) for epoch in range(3000)])
    counts = np.array([np.bincount(column, minlength=8) for column in images.T])
    assert np.abs(counts - 375).max() < 90


def test_permute_keeps_no_neighbours_together() -> None:
    images = permute(np.arange(100_000), 100_000, 0, 0)
    assert abs(float(np.corrcoef(images[:-1], images[1:])[0, 1])) < 0.02
    assert np.mean(np.abs(np.diff(images)) < 100) < 0.01


def test_the_progress_figures_follow_the_order(shards: ShardSet) -> None:
    loader = Loader(shards, batch_size=2, context_length=3)
    assert (loader.num_windows, loader.num_batches) == (3, 1)
    in_order = Loader(shards, batch_size=3, context_length=3, order="sequential")
    assert (in_order.num_windows, in_order.num_batches) == (4, 2)


def test_the_state_is_small_json(shards: ShardSet) -> None:
    state = Loader(shards, batch_size=2, context_length=4).state_dict()
    assert len(json.dumps(state)) < 300


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context_length": 3}, "context_length was 4, is now 3"),
        ({"seed": 1}, "seed was 0, is now 1"),
        ({"order": "random"}, "order was 'shuffled', is now 'random'"),
    ],
)
def test_a_state_of_other_settings_is_refused(
    shards: ShardSet, settings: dict[str, Any], message: str
) -> None:
    state = Loader(shards, batch_size=2, context_length=4).state_dict()
    other = Loader(shards, **{"batch_size": 2, "context_length": 4, **settings})
    with pytest.raises(CheckpointError, match=message):
        other.load_state_dict(state)


def test_a_state_of_other_data_is_refused(shards: ShardSet, make_shards: MakeShards) -> None:
    state = Loader(shards, batch_size=2, context_length=4).state_dict()
    other = make_shards([[1, 2, 3], [4], [5, 6, 7, 7]], name="other")
    with pytest.raises(CheckpointError, match=r"the data set was .* resume with the data"):
        Loader(other, batch_size=2, context_length=4).load_state_dict(state)


@pytest.mark.parametrize("edit", [{"position": -1}, {"position": "3"}, {"position": None}])
def test_a_damaged_state_is_refused(shards: ShardSet, edit: dict[str, Any]) -> None:
    loader = Loader(shards, batch_size=2, context_length=4)
    with pytest.raises(CheckpointError, match="it is damaged"):
        loader.load_state_dict({**loader.state_dict(), **edit})


def test_an_incomplete_state_is_refused(shards: ShardSet) -> None:
    with pytest.raises(CheckpointError, match=r"lacks context_length, data, .*position"):
        Loader(shards, batch_size=2, context_length=4).load_state_dict({"version": 1})


def test_a_refused_state_leaves_the_loader_where_it_was(shards: ShardSet) -> None:
    loader = Loader(shards, batch_size=2, context_length=4)
    with pytest.raises(CheckpointError):
        loader.load_state_dict({**loader.state_dict(), "position": 8, "seed": 5})
    assert loader.position == 0


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_a_context_longer_than_the_data_is_refused_with_the_numbers(
    shards: ShardSet, order: Any
) -> None:
    Loader(shards, batch_size=1, context_length=11, order=order).next_batch()
    with pytest.raises(DataError, match=r"context_length=12 .* 11 tokens .* at most 11"):
        Loader(shards, batch_size=1, context_length=12, order=order)


def test_a_shard_that_was_damaged_after_packing_is_refused(shards: ShardSet) -> None:
    file = shards.path / "shard-00000.bin"
    file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(DataError, match=r"token id 65535 is not below vocab_size=10.*--verify"):
        Loader(shards, batch_size=1, context_length=4).next_batch()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"context_length": 0}, "context_length=0 must be at least 1"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"order": "sorted"}, "order='sorted'; allowed: shuffled, random, sequential"),
        ({"world_size": 0}, "world_size=0 must be at least 1"),
        ({"rank": 2, "world_size": 2}, "rank=2 must be at least 0 and below world_size=2"),
        ({"world_size": 3}, "batch_size=2 is not a multiple of world_size=3; nearest above: 3"),
    ],
)
def test_settings_out_of_range_are_refused(
    shards: ShardSet, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(shards, **{"batch_size": 2, "context_length": 4, **settings})


def test_one_pass_is_for_evaluation(shards: ShardSet) -> None:
    with pytest.raises(ConfigError, match="one_pass needs order='sequential'"):
        next(Loader(shards, batch_size=1, context_length=4).one_pass())


def test_padding_is_ignored_by_the_loss(shards: ShardSet) -> None:
    batch = Loader(shards, batch_size=3, context_length=20, order="sequential").next_batch()
    assert (batch.targets_BT != IGNORE_INDEX).sum() == len(STREAM)
