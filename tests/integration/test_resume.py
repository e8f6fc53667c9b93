"""Processes killed at random moments and resumed give the losses of the uninterrupted run.

Equal means bit for bit. Every step is followed by a checkpoint, so most kills hit one while it is
being written.
"""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from lmworks.train.checkpoint import CheckpointStore, is_intact
from lmworks.train.metrics import read_metrics

Launch = Callable[..., int]
Launcher = Callable[[int], AbstractContextManager[Launch]]


def numbers(run: Path) -> list[dict[str, Any]]:
    """Metrics without what depends on the clock, and without events."""
    clock = {"tokens_per_s", "mfu", "elapsed_s"}
    return [
        {key: value for key, value in record.items() if key not in clock}
        for record in read_metrics(run)
        if record["kind"] != "event"
    ]


def kill_and_resume(launch: Launch, run: Path, argv: list[str], *, kills: int, seed: int) -> int:
    """Kill the run `kills` times (or until it is done), let it finish; returns kills that hit."""
    delays = random.Random(seed)
    hits = 0
    for _ in range(kills):
        status = launch(argv, run, kill_after_s=delays.uniform(0, 0.15))
        assert status in (0, -9)
        if status == 0:
            break
        hits += 1
        store = CheckpointStore(run / "checkpoints", keep_last=2, keep_best=False)
        assert all(is_intact(store.folder / name) for name in store.names())
        argv = ["train", "--resume", str(run)]
    assert launch(["train", "--resume", str(run)], run) == 0
    return hits


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_killed_runs_end_like_the_uninterrupted_one(
    launch: Launch, tiny_recipe: Path, tmp_path: Path, precision: str
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    option = f"train.precision={precision}"
    assert launch(["train", str(tiny_recipe), option, "--run", str(straight)], straight) == 0
    argv = ["train", str(tiny_recipe), option, "--run", str(killed)]
    assert kill_and_resume(launch, killed, argv, kills=3, seed=1) > 0
    assert numbers(killed) == numbers(straight)


def test_killed_runs_of_a_mixture_of_experts_end_like_the_uninterrupted_one(
    launch: Launch, tiny_recipe: Path, tmp_path: Path
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    options = [
        "model.mlp={kind: moe, d_ff: 8, num_experts: 4, router: {selection_bias: true}, "
        "balance: {bias_rate: 0.01, sequence_weight: 0.001}}",
        "model.mtp={kind: sequential}",
        "log.routing_every=1",
        "train.activation_checkpointing=full",
        "train.micro_batch_size=2",
    ]
    assert launch(["train", str(tiny_recipe), *options, "--run", str(straight)], straight) == 0
    argv = ["train", str(tiny_recipe), *options, "--run", str(killed)]
    assert kill_and_resume(launch, killed, argv, kills=3, seed=4) > 0
    assert numbers(killed) == numbers(straight)
    assert any(record["kind"] == "routing" for record in numbers(killed))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_twenty_kills_leave_no_trace(
    launch: Launch, tiny_recipe: Path, tmp_path: Path, optimizer: str
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    options = [f"optim.kind={optimizer}", "train.steps=200"]
    assert launch(["train", str(tiny_recipe), *options, "--run", str(straight)], straight) == 0
    argv = ["train", str(tiny_recipe), *options, "--run", str(killed)]
    assert kill_and_resume(launch, killed, argv, kills=20, seed=2) == 20
    assert numbers(killed) == numbers(straight)


@pytest.mark.slow
def test_kills_leave_no_trace_with_two_threads(
    launcher: Launcher, tiny_recipe: Path, tmp_path: Path
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    with launcher(2) as launch:
        assert launch(["train", str(tiny_recipe), "--run", str(straight)], straight) == 0
        argv = ["train", str(tiny_recipe), "--run", str(killed)]
        assert kill_and_resume(launch, killed, argv, kills=5, seed=3) > 0
    assert numbers(killed) == numbers(straight)


def test_a_run_killed_before_its_first_checkpoint_starts_again(
    launch: Launch, tiny_recipe: Path, tmp_path: Path
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    options = ["checkpoint.every=100", "train.steps=6"]
    assert launch(["train", str(tiny_recipe), *options, "--run", str(straight)], straight) == 0
    argv = ["train", str(tiny_recipe), *options, "--run", str(killed)]
    launch(argv, killed, kill_after_s=0.0)
    assert launch(["train", "--resume", str(killed)], killed) == 0
    assert numbers(killed) == numbers(straight)
