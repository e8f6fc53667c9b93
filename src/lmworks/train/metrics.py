"""Where a run's numbers go: `metrics.jsonl` always, TensorBoard and Weights & Biases when asked.

`metrics.jsonl` is the source of every plot and report. One JSON object per line, written and
flushed at once; on resume it is cut back to the checkpoint's step, so that the finished file reads
as if the run had never been interrupted. Kinds: train, routing, eval, sample, event.
"""

import importlib.util
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from lmworks.base.errors import ConfigError, DataError, StorageError
from lmworks.base.storage import atomic_file, fsync, write_text
from lmworks.train.recipe import LogConfig

METRICS_FILE = "metrics.jsonl"
Record = dict[str, Any]


class Sink(Protocol):
    """Receives every record; numbers under a name that a plot would carry."""

    def write(self, record: Record) -> None: ...
    def close(self) -> None: ...


class MetricsLog:
    """Appends records to `metrics.jsonl` and passes them on to the other sinks."""

    def __init__(self, run: Path, sinks: list[Sink]) -> None:
        # Without a buffer: a record is in the file or the write has failed, here and now.
        self._file = (run / METRICS_FILE).open("ab", buffering=0)
        self._sinks = sinks

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Write one record; `values` are numbers, strings and lists of numbers.

        Raises:
            StorageError: the disk is full; what was logged before is intact.
        """
        record = {"kind": kind, "step": step, **values}
        line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
        try:
            written = self._file.write(line)
        except OSError as err:
            raise StorageError(f"could not write {self._file.name}: {err.strerror}") from err
        if written != len(line):
            raise StorageError(f"could not write {self._file.name}: the disk is full")
        for sink in self._sinks:
            sink.write(record)

    def sync(self) -> None:
        """Force what was written to the disk."""
        fsync(Path(self._file.name))

    def close(self) -> None:
        """Close the file and every sink."""
        self._file.close()
        for sink in self._sinks:
            sink.close()


def read_metrics(run: Path) -> list[Record]:
    """All records of a run, oldest first; a last line that a kill cut short is left out."""
    file = run / METRICS_FILE
    return list(_whole_lines(file)) if file.is_file() else []


def truncate_metrics(run: Path, *, after_step: int) -> None:
    """Drop every record of a later step than `after_step`, atomically."""
    file = run / METRICS_FILE
    if not file.is_file():
        return
    with atomic_file(file) as part, part.open("w", encoding="utf-8") as out:
        for record in _whole_lines(file):
            if record["step"] <= after_step:
                out.write(json.dumps(record, ensure_ascii=False) + "\n")


def open_sinks(run: Path, log: LogConfig, *, config: dict[str, Any], next_step: int) -> list[Sink]:
    """The sinks beside metrics.jsonl; raises ConfigError that names a missing package."""
    check_packages(log)
    sinks: list[Sink] = []
    if log.tensorboard:
        sinks.append(_TensorBoard(run, next_step))
    if log.wandb != "off":
        sinks.append(_WandB(run, log.wandb, config))
    return sinks


def check_packages(log: LogConfig) -> None:
    """Raise ConfigError that names a package which `log` needs and which is not installed."""
    wanted = {"tensorboard": log.tensorboard, "wandb": log.wandb != "off"}
    for package, is_wanted in wanted.items():
        if is_wanted and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"log.{package}={str(getattr(log, package)).lower()} needs the package {package}: "
                f"pip install 'lmworks[track]', or set log.{package}="
                f"{'false' if package == 'tensorboard' else 'off'}"
            )


class _TensorBoard:
    def __init__(self, run: Path, next_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=next_step)

    def write(self, record: Record) -> None:
        for name, value in _scalars(record):
            self._writer.add_scalar(name, value, record["step"])
        if record["kind"] == "sample":
            self._writer.add_text("sample", record["prompt"] + record["text"], record["step"])

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(
        self, run: Path, mode: Literal["offline", "online"], config: dict[str, Any]
    ) -> None:
        import wandb

        self._run = wandb.init(
            dir=str(run), mode=mode, name=run.name, id=_wandb_id(run), resume="allow", config=config
        )

    def write(self, record: Record) -> None:
        self._run.log(dict(_scalars(record)), step=record["step"])

    def close(self) -> None:
        self._run.finish()


def _wandb_id(run: Path) -> str:
    """One id per run folder, so that a resumed run goes on in the same W&B run."""
    file = run / "wandb_id.txt"
    if not file.is_file():
        write_text(file, uuid.uuid4().hex[:12] + "\n")
    return file.read_text(encoding="utf-8").strip()


def _scalars(record: Record) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if key != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{record['kind']}/{key}", float(value)


def _whole_lines(file: Path) -> Iterator[Record]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith("\n"):
                yield _record(line, f"{file}:{number}")


def _record(line: str, where: str) -> Record:
    try:
        record: Any = json.loads(line)
    except ValueError as err:
        raise DataError(f"{where}: damaged, not valid JSON ({err}); delete that line") from None
    if not isinstance(record, dict) or not {"kind", "step"} <= record.keys():
        raise DataError(f"{where}: damaged, no record with kind and step; delete that line")
    return record
