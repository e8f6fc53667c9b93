"""Checkpoints: everything a run needs to go on, whole or absent, never pickle.

    checkpoints/
    ├── step-200/{model,optimizer,rng}.safetensors, config.json, state.json
    ├── latest          text: the name of the checkpoint to resume from, written last
    └── best            text: the checkpoint with the lowest evaluation loss

A folder is written beside its place, synced and renamed; `latest` moves only afterwards. Old
checkpoints are renamed away before they are deleted, so that no kill leaves half of one under a
valid name. `state.json` holds size and SHA-256 of every other file; loading checks both and never
falls back silently: it names the file and the newest checkpoint that is intact.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lmworks.base.errors import CheckpointError
from lmworks.base.storage import (
    atomic_dir,
    fsync,
    part_path,
    remove_parts,
    sha256_file,
    write_text,
)
from lmworks.models.pretrained import save_tensors

FORMAT = 1
LATEST, BEST = "latest", "best"
MODEL_FILE, OPTIMIZER_FILE = "model.safetensors", "optimizer.safetensors"
RNG_FILE, CONFIG_FILE, STATE_FILE = "rng.safetensors", "config.json", "state.json"
FAILED_PREFIX = "failed-step-"
"""`failed-step-N` is the state before a step whose loss was not finite; never pruned or resumed
unasked."""
_STEP_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Best:
    """The lowest evaluation loss of a run so far."""

    step: int
    loss: float


@dataclass(frozen=True)
class Progress:
    """Where a run stands: the part of a checkpoint that is plain data."""

    step: int
    """Optimizer steps done."""
    tokens: int
    """Target tokens trained on."""
    elapsed_s: float
    """Training time over all sessions of the run."""
    loader: dict[str, Any]
    """`Loader.state_dict()` after the last batch of `step`."""
    num_threads: int
    """Threads per operation; another number may change the last bits of every sum."""
    best: Best | None = None


@dataclass(frozen=True)
class Snapshot:
    """All of a run at one step."""

    progress: Progress
    model_config: dict[str, Any]
    weights: Mapping[str, Tensor]
    """fp32 (master) weights by parameter name."""
    optimizer: Mapping[str, Tensor]
    rng: Mapping[str, Tensor]


class CheckpointStore:
    """The `checkpoints/` folder of one run. Only one process may write to it."""

    def __init__(self, folder: str | Path, *, keep_last: int, keep_best: bool) -> None:
        self.folder = Path(folder)
        self.keep_last = keep_last
        self.keep_best = keep_best

    def save(self, snapshot: Snapshot) -> Path:
        """Write `step-N`, point `latest` (and `best`) at it, and delete what is no longer kept.

        Raises:
            StorageError: the disk is full or read-only; older checkpoints and `latest` are intact.
        """
        name = f"step-{snapshot.progress.step}"
        path = self.folder / name
        if path.exists():  # superseded by a resume from an older checkpoint
            fresh = part_path(path)
            write_snapshot(fresh, snapshot)
            self._retire(path)
            fresh.rename(path)
        else:
            write_snapshot(path, snapshot)
        write_text(self.folder / LATEST, name + "\n")
        self._point_best_at(snapshot.progress.best)
        self._delete_old()
        return path

    def load(self, name: str | None = None) -> Snapshot:
        """Read checkpoint `name`, or the latest one, after checking every file of it."""
        name = name or self.latest()
        if name is None:
            raise CheckpointError(f"{self.folder}: no checkpoint to resume from")
        path = self.folder / name
        if not path.is_dir():
            names = ", ".join(self.names()) or "none"
            raise CheckpointError(f"{path}: no such checkpoint; there are: {names}")
        try:
            return read_snapshot(path)
        except CheckpointError as err:
            raise CheckpointError(f"{err}; {self._advice(broken=name)}") from None

    def latest(self) -> str | None:
        """Name of the checkpoint to resume from, or None when the run has none yet.

        A kill may come between the first checkpoint and its pointer; folders are whole or absent,
        so without a pointer the newest one is right.
        """
        names = self.names()
        return _read_pointer(self.folder / LATEST) or (names[-1] if names else None)

    def best(self) -> str | None:
        """Name of the checkpoint with the lowest evaluation loss, or None."""
        return _read_pointer(self.folder / BEST)

    def names(self) -> list[str]:
        """Names `step-N` of all checkpoints, oldest first."""
        found = [_STEP_NAME.fullmatch(p.name) for p in self.folder.glob("step-*")]
        return [m.group(0) for m in sorted((m for m in found if m), key=lambda m: int(m.group(1)))]

    def point_latest_at(self, name: str) -> None:
        """Make `name` the checkpoint that the next resume starts from."""
        write_text(self.folder / LATEST, name + "\n")

    def discard(self, name: str) -> None:
        """Delete checkpoint `name` if there is one."""
        self._retire(self.folder / name)

    def clean(self) -> None:
        """Delete what killed writers left behind."""
        if self.folder.is_dir():
            remove_parts(self.folder)

    def _point_best_at(self, best: Best | None) -> None:
        """Also after a save that is not the best: a kill may have come before the pointer moved."""
        if not self.keep_best or best is None:
            return
        name = f"step-{best.step}"
        if name != self.best() and (self.folder / name).is_dir():
            write_text(self.folder / BEST, name + "\n")

    def _advice(self, *, broken: str) -> str:
        run = self.folder.parent
        for name in reversed(self.names()):
            if name != broken and is_intact(self.folder / name):
                return (
                    f"the newest intact checkpoint is {name}: "
                    f"lmworks train --resume {run} --from {name}"
                )
        return f"no other checkpoint in {self.folder} is intact: start the run again"

    def _delete_old(self) -> None:
        kept = set(self.names()[-self.keep_last :]) | {self.latest()}
        if self.keep_best:
            kept.add(self.best())
        for name in self.names():
            if name not in kept:
                self._retire(self.folder / name)
        remove_parts(self.folder)

    def _retire(self, path: Path) -> None:
        """Take a checkpoint's valid name away in one step, then delete its files."""
        if path.exists():
            doomed = part_path(path)
            path.rename(doomed)
            fsync(path.parent)
            shutil.rmtree(doomed, ignore_errors=True)


def write_snapshot(path: Path, snapshot: Snapshot) -> Path:
    """Write one checkpoint folder and return it; `path` must not exist."""
    with atomic_dir(path) as part:
        save_tensors(part / MODEL_FILE, snapshot.weights)
        save_tensors(part / OPTIMIZER_FILE, snapshot.optimizer)
        save_tensors(part / RNG_FILE, snapshot.rng)
        _dump_json(part / CONFIG_FILE, snapshot.model_config)
        files = {
            file.name: {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
            for file in sorted(part.iterdir())
        }
        progress = snapshot.progress
        best = progress.best and {"step": progress.best.step, "loss": progress.best.loss}
        _dump_json(
            part / STATE_FILE,
            {"format": FORMAT, **vars(progress), "best": best, "files": files},
        )
    return path


def read_snapshot(path: Path) -> Snapshot:
    """Read one checkpoint folder; raises CheckpointError that names the file that is not right."""
    state = _verified_state(path)
    best = state["best"]
    progress = Progress(
        step=state["step"],
        tokens=state["tokens"],
        elapsed_s=state["elapsed_s"],
        loader=state["loader"],
        num_threads=state["num_threads"],
        best=best and Best(**best),
    )
    return Snapshot(
        progress=progress,
        model_config=_read_json(path / CONFIG_FILE),
        weights=_load_tensors(path / MODEL_FILE),
        optimizer=_load_tensors(path / OPTIMIZER_FILE),
        rng=_load_tensors(path / RNG_FILE),
    )


def is_intact(path: Path) -> bool:
    """Whether every file of a checkpoint folder is as it was saved."""
    try:
        _verified_state(path)
    except CheckpointError:
        return False
    return True


def check_architecture(
    expected: Mapping[str, Any], found: Mapping[str, Any], *, where: str
) -> None:
    """Raise CheckpointError that lists every field in which two model configs differ."""
    left, right = _flat(expected), _flat(found)
    differing = [
        f"{key}: {right.get(key, 'absent')!r} in the checkpoint, {left.get(key, 'absent')!r} here"
        for key in sorted(left.keys() | right.keys())
        if left.get(key, "absent") != right.get(key, "absent")
    ]
    if differing:
        raise CheckpointError(f"{where}: another architecture ({'; '.join(differing)})")


def copy_tensors(target: Mapping[str, Tensor], source: Mapping[str, Tensor], *, where: str) -> None:
    """Copy `source` into the tensors of `target` in place; names and shapes must agree."""
    missing, extra = sorted(target.keys() - source.keys()), sorted(source.keys() - target.keys())
    if missing or extra:
        parts = [f"missing {', '.join(missing[:3])}"] * bool(missing)
        parts += [f"unexpected {', '.join(extra[:3])}"] * bool(extra)
        raise CheckpointError(f"{where}: tensors do not match the model: {'; '.join(parts)}")
    with torch.no_grad():
        for name, tensor in target.items():
            if tensor.shape != source[name].shape:
                raise CheckpointError(
                    f"{where}: {name} has shape {tuple(source[name].shape)}, "
                    f"the model needs {tuple(tensor.shape)}"
                )
            tensor.copy_(source[name])


def _verified_state(path: Path) -> dict[str, Any]:
    state = _read_json(path / STATE_FILE)
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path / STATE_FILE}: format {state.get('format')!r}, this version reads {FORMAT}"
        )
    for name, expected in state["files"].items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing")
        size_bytes = file.stat().st_size
        if size_bytes != expected["bytes"]:
            raise CheckpointError(
                f"{file}: {size_bytes:,} bytes, but {expected['bytes']:,} were saved (cut short?)"
            )
        if sha256_file(file) != expected["sha256"]:
            raise CheckpointError(f"{file}: checksum differs from the saved one (corrupt)")
    return state


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as err:
        raise CheckpointError(f"{file}: not valid JSON ({err})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: expected a JSON object, got {type(value).__name__}")
    return value


def _dump_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_pointer(file: Path) -> str | None:
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None


def _load_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except SafetensorError as err:
        raise CheckpointError(f"{file}: not a valid safetensors file ({err})") from None


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
