"""`lmworks train` in real processes, for the tests that kill and limit them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

LAUNCHER = Path(__file__).with_name("train_launcher.py")


class TrainProcesses:
    """Runs command lines one after the other, each in a process of its own."""

    def __init__(self, server: "subprocess.Popen[str]", output: Path) -> None:
        self._server = server
        self.output = output
        """What the last process printed, standard error included."""

    def __call__(
        self,
        argv: list[str],
        run: Path,
        *,
        kill_after_s: float | None = None,
        number: signal.Signals = signal.SIGKILL,
        address_space: int | None = None,
        file_size: int | None = None,
    ) -> int:
        """Exit status of `lmworks ARGV`, negative for a signal; see train_launcher.py."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = {
            "argv": argv,
            "metrics": str(run / "metrics.jsonl"),
            "kill_after_s": kill_after_s,
            "signal": int(number),
            "address_space": address_space,
            "file_size": file_size,
            "output": str(self.output),
        }
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


Launcher = Callable[[int], contextlib.AbstractContextManager[TrainProcesses]]


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    """Context manager that gives TrainProcesses with a number of threads."""

    @contextlib.contextmanager
    def open_launcher(num_threads: int) -> Iterator[TrainProcesses]:
        environment = {**os.environ, "OMP_NUM_THREADS": str(num_threads)}
        with subprocess.Popen(
            [sys.executable, str(LAUNCHER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as server:
            yield TrainProcesses(server, tmp_path_factory.mktemp("launcher") / "output.txt")

    return open_launcher


@pytest.fixture(scope="session")
def launch(launcher: Launcher) -> Iterator[TrainProcesses]:
    """One thread: waiting for each other would cost more than these tiny models take."""
    with launcher(1) as run:
        yield run


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that saves after every step."""
    folder = tmp_path_factory.mktemp("recipe")
    text = folder / "text.txt"
    text.write_text("\n<|endoftext|>\n".join(f"the number {n} is after {n - 1}" for n in range(90)))
    values: dict[str, Any] = {
        "tokenizer": {"kind": "byte"},
        "data": {"kind": "text", "files": [str(text)], "val_fraction": 0.2},
        "model": {"d_model": 32, "num_layers": 2, "attention": {"num_heads": 2}, "dropout": 0.1},
        "train": {
            "steps": 15,
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
