"""Processes killed at random moments and resumed give the losses of the uninterrupted run.

Equal means bit for bit. Every step is followed by a checkpoint, so most kills hit one while it is
being written.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmworks.train.checkpoint import CheckpointStore, is_intact
from lmworks.train.metrics import read_metrics

LAUNCHER = Path(__file__).with_name("train_launcher.py")
Launch = Callable[..., int]


@contextlib.contextmanager
def launcher(num_threads: int) -> Iterator[Launch]:
    """Run the command line in a child process; `kill_after_s` ends it with SIGKILL."""
    with subprocess.Popen(
        [sys.executable, str(LAUNCHER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(num_threads)},
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def run(argv: list[str], run_folder: Path, *, kill_after_s: float | None = None) -> int:
            metrics = str(run_folder / "metrics.jsonl")
            request = {"argv": argv, "kill_after_s": kill_after_s, "metrics": metrics}
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            return int(answers.readline())

        yield run


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    """One thread: waiting for each other would cost more than these tiny models take."""
    with launcher(num_threads=1) as run:
        yield run


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    text = folder / "text.txt"
    text.write_text("\n<|endoftext|>\n".join(f"the number {n} is after {n - 1}" for n in range(90)))
    values = {
        "tokenizer": {"kind": "byte"},
        "data": {"kind": "text", "files": [str(text)], "val_fraction": 0.2},
        "model": {"d_model": 32, "num_layers": 2, "attention": {"num_heads": 2}, "dropout": 0.1},
        "train": {
            "steps": 40,
            "batch_size": 4,
            "micro_batch_size": 2,
            "context_length": 32,
            "compile": "off",
        },
        "eval": {"every": 5},
        "sample": {"every": 5, "max_new_tokens": 4},
        "checkpoint": {"every": 1, "keep_best": False},
    }
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


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
    launch: Launch, recipe: Path, tmp_path: Path, precision: str
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    options = [f"train.precision={precision}", "train.steps=15"]
    assert launch(["train", str(recipe), *options, "--run", str(straight)], straight) == 0
    argv = ["train", str(recipe), *options, "--run", str(killed)]
    assert kill_and_resume(launch, killed, argv, kills=3, seed=1) > 0
    assert numbers(killed) == numbers(straight)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "num_threads"), [("adamw", 2), ("muon", 1)])
def test_twenty_kills_leave_no_trace(
    recipe: Path, tmp_path: Path, optimizer: str, num_threads: int
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    options = [f"optim.kind={optimizer}", "train.steps=200"]
    with launcher(num_threads) as launch:
        assert launch(["train", str(recipe), *options, "--run", str(straight)], straight) == 0
        argv = ["train", str(recipe), *options, "--run", str(killed)]
        assert kill_and_resume(launch, killed, argv, kills=20, seed=2) == 20
    assert numbers(killed) == numbers(straight)


def test_a_run_killed_before_its_first_checkpoint_starts_again(
    launch: Launch, recipe: Path, tmp_path: Path
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    options = ["checkpoint.every=100", "train.steps=6"]
    assert launch(["train", str(recipe), *options, "--run", str(straight)], straight) == 0
    argv = ["train", str(recipe), *options, "--run", str(killed)]
    launch(argv, killed, kill_after_s=0.0)
    assert launch(["train", "--resume", str(killed)], killed) == 0
    assert numbers(killed) == numbers(straight)
