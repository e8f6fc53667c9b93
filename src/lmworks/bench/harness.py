"""What every benchmark shares: child processes that take turns, spreads, and result files.

    for run in interleave({"ours": ours, "peer": peer}, rounds=3): ...
    save_result("training_step", title=..., command=..., rows=rows, packages=["torch"])

Shared machines drift, so contenders run in turn (A B A B ...) and ratios are taken of medians. A
result file names machine, versions and spread; the tables in README and docs are made from it.
"""

import importlib.metadata
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from lmworks.base.machine import read_machine
from lmworks.base.storage import write_json

RESULTS = Path("benchmarks/results")

T = TypeVar("T")


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    min: float
    max: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Row:
    """One measured figure of one contender."""

    case: str
    """What was done, for example "train 200 MB, 32k"."""
    contender: str
    metric: str
    """Name with unit, for example "cpu_s" or "tokens_per_s"."""
    value: Spread


@dataclass(frozen=True)
class ChildRun:
    """A finished child process, as the operating system accounts for it."""

    stdout: str
    wall_s: float
    cpu_s: float
    """User and system time of the child and of the processes it waited for."""
    peak_rss_bytes: int
    """Largest resident memory of the child itself."""


def run_child(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> ChildRun:
    """Run a command to its end; raises CalledProcessError with its output if it fails."""
    start_s = time.perf_counter()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}, text=True
    )
    assert child.stdout is not None, "opened as a pipe"
    stdout = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - start_s
    if child.returncode != 0:
        raise subprocess.CalledProcessError(child.returncode, command, stdout)
    return ChildRun(stdout, wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def interleave(
    contenders: Mapping[str, Callable[[], T]], *, rounds: int
) -> Iterator[tuple[str, T]]:
    """Call each contender once per round, in turn."""
    for _ in range(rounds):
        for name, run in contenders.items():
            yield name, run()


def time_in_turn(
    contenders: Mapping[str, Callable[[], object]],
    *,
    clock_s: Callable[[], float],
    rounds: int,
) -> dict[str, list[float]]:
    """Milliseconds of each call by contender, taking turns; a first round is not counted."""
    times_ms: dict[str, list[float]] = {name: [] for name in contenders}

    def timed(step: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            start_s = clock_s()
            step()
            return (clock_s() - start_s) * 1e3

        return run

    in_turn = interleave({n: timed(step) for n, step in contenders.items()}, rounds=rounds + 1)
    for name, took_ms in in_turn:
        times_ms[name].append(took_ms)
    return {name: values[1:] for name, values in times_ms.items()}


def machine_facts(packages: Sequence[str]) -> dict[str, Any]:
    """The machine and the versions of the packages that took part."""
    machine = read_machine()
    flags = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
    return {
        "cpu": machine.cpu_model,
        "cores": machine.num_cores,
        "memory_gib": round(machine.memory_bytes / 2**30, 1),
        "isa": [flag for flag in flags if flag in machine.isa_flags],
        "os": machine.os,
        "versions": {name: _version(name) for name in packages},
    }


def save_result(
    name: str, *, title: str, command: str, rows: Sequence[Row], packages: Sequence[str]
) -> Path:
    """Write benchmarks/results/NAME.json and return its path."""
    path = RESULTS / f"{name}.json"
    write_json(
        path,
        {
            "title": title,
            "command": command,
            "machine": machine_facts(packages),
            "rows": [
                {
                    "case": row.case,
                    "contender": row.contender,
                    "metric": row.metric,
                    **{key: _rounded(value) for key, value in asdict(row.value).items()},
                }
                for row in rows
            ],
        },
    )
    return path


def replace_rows(name: str, rows: Sequence[Row]) -> list[Row]:
    """The rows of benchmarks/results/NAME.json with the cases of `rows` measured anew.

    The new rows stand where the first of those they replace stood, or at the end.
    """
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return list(rows)
    old = [
        Row(r["case"], r["contender"], r["metric"], Spread(*(r[f.name] for f in fields(Spread))))
        for r in json.loads(path.read_text("utf-8"))["rows"]
    ]
    measured = {row.case for row in rows}
    kept = [row for row in old if row.case not in measured]
    at = next((i for i, row in enumerate(old) if row.case in measured), len(old))
    return [*kept[:at], *rows, *kept[at:]]


def print_rows(rows: Sequence[Row]) -> None:
    """One line per figure: case, contender, metric, median and range."""
    for row in rows:
        value = row.value
        print(
            f"{row.case:<36} {row.contender:<28} {row.metric:<22} {value.median:>12.4g}"
            f"  ({value.min:.4g} to {value.max:.4g}, {value.repeats} runs)"
        )


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.5g}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
