"""Checkpoints: whole or absent, exact, and honest about damage."""

import json
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmworks.base.errors import CheckpointError, StorageError
from lmworks.train.checkpoint import (
    Best,
    CheckpointStore,
    Progress,
    Snapshot,
    check_architecture,
    read_snapshot,
    write_snapshot,
)


def make_snapshot(step: int, *, best: Best | None = None) -> Snapshot:
    return Snapshot(
        progress=Progress(
            step=step,
            tokens=100 * step,
            elapsed_s=0.1 + step,
            loader={"position": step, "order": "shuffled"},
            num_threads=2,
            best=best,
        ),
        model_config={"d_model": 8, "attention": {"num_heads": 2}},
        weights={"embed.weight": torch.full((4, 8), float(step))},
        optimizer={"step": torch.tensor(step), "exp_avg.embed.weight": torch.rand(4, 8)},
        rng={"torch_cpu": torch.get_rng_state()},
    )


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2, keep_best=True)


def assert_equal(left: Snapshot, right: Snapshot) -> None:
    assert left.progress == right.progress
    assert left.model_config == right.model_config
    for part in ("weights", "optimizer", "rng"):
        ours, theirs = getattr(left, part), getattr(right, part)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_saved_snapshot_loads_equal(store: CheckpointStore) -> None:
    snapshot = make_snapshot(3, best=Best(3, 1.25))
    store.save(snapshot)
    assert_equal(store.load(), snapshot)


def test_the_last_and_the_best_checkpoints_are_kept(store: CheckpointStore) -> None:
    losses = [3.0, 1.0, 2.0, 2.5, 2.6]
    best = None
    for step, loss in enumerate(losses, start=1):
        best = Best(step, loss) if best is None or loss < best.loss else best
        store.save(make_snapshot(step, best=best))
    assert store.names() == ["step-2", "step-4", "step-5"]
    assert (store.latest(), store.best()) == ("step-5", "step-2")


def test_a_kill_before_the_best_pointer_moved_is_made_good_by_the_next_save(
    store: CheckpointStore,
) -> None:
    best = Best(2, 1.0)
    store.save(make_snapshot(1, best=Best(1, 2.0)))
    write_snapshot(store.folder / "step-2", make_snapshot(2, best=best))
    for step in (3, 4, 5):
        store.save(make_snapshot(step, best=best))
    assert store.best() == "step-2"
    assert store.names() == ["step-2", "step-4", "step-5"]


def test_without_keep_best_there_is_no_pointer_to_a_checkpoint_that_goes(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=False)
    for step in (1, 2):
        store.save(make_snapshot(step, best=Best(1, 1.0)))
    assert store.names() == ["step-2"]
    assert store.best() is None


def test_saving_again_after_going_back_replaces_the_superseded_one(
    store: CheckpointStore,
) -> None:
    for step in (1, 2):
        store.save(make_snapshot(step))
    store.point_latest_at("step-1")
    again = make_snapshot(2)
    store.save(again)
    assert_equal(store.load(), again)


def test_without_a_pointer_the_newest_whole_checkpoint_is_the_latest(
    store: CheckpointStore,
) -> None:
    write_snapshot(store.folder / "step-7", make_snapshot(7))
    assert store.latest() == "step-7"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "rng.safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_damage_names_the_file_and_the_newest_intact_checkpoint(
    store: CheckpointStore, name: str, damage: str
) -> None:
    for step in (1, 2):
        store.save(make_snapshot(step))
    file = store.folder / "step-2" / name
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(data[:-5])
    else:
        data[-1] ^= 1
        file.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        store.load()
    message = str(caught.value)
    assert str(file) in message
    assert f"lmworks train --resume {store.folder.parent} --from step-1" in message


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}'])
def test_a_state_file_that_makes_no_sense_is_refused(store: CheckpointStore, text: str) -> None:
    path = store.save(make_snapshot(1))
    (path / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"state\.json"):
        store.load()


def test_an_unknown_name_lists_what_there_is(store: CheckpointStore) -> None:
    store.save(make_snapshot(1))
    with pytest.raises(CheckpointError, match=r"step-9: no such checkpoint; there are: step-1"):
        store.load("step-9")


def test_another_architecture_lists_the_differing_fields() -> None:
    ours = {"d_model": 8, "attention": {"num_heads": 2, "qk_norm": False}}
    theirs = {"d_model": 8, "attention": {"num_heads": 4, "qk_norm": False}}
    with pytest.raises(CheckpointError) as caught:
        check_architecture(ours, theirs, where="runs/x/checkpoints/step-1")
    message = str(caught.value)
    assert "attention.num_heads: 4 in the checkpoint, 2 here" in message
    assert "d_model" not in message


def test_the_state_file_holds_the_hash_of_every_other_file(store: CheckpointStore) -> None:
    path = store.save(make_snapshot(1))
    state = json.loads((path / "state.json").read_text())
    assert state["files"].keys() == {p.name for p in path.iterdir()} - {"state.json"}


@pytest.fixture
def file_size_limit() -> Iterator[Callable[[int], None]]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size_bytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_keeps_what_was_there(
    store: CheckpointStore, file_size_limit: Callable[[int], None]
) -> None:
    first = make_snapshot(1)
    store.save(first)
    big = replace(make_snapshot(2), weights={"embed.weight": torch.zeros(100_000)})
    file_size_limit(10_000)
    with pytest.raises(StorageError, match="step-2"):
        store.save(big)
    assert sorted(p.name for p in store.folder.iterdir()) == ["latest", "step-1"]
    assert_equal(read_snapshot(store.folder / "step-1"), first)
