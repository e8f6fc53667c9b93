"""What a run was made with: versions, machine, git state, command."""

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lmworks.base.machine import read_machine

_PACKAGES = ("torch", "numpy", "safetensors", "pydantic")
_GIT_TIMEOUT_S = 5.0


def describe_environment() -> dict[str, Any]:
    """Plain data for environment.json."""
    import torch

    machine = read_machine()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "versions": {
            "lmworks": _version("lmworks"),
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "git": git_state(Path.cwd()),
        "hardware": {
            "cpu": machine.cpu_model,
            "cores": machine.num_cores,
            "threads": torch.get_num_threads(),
            "instruction_set": torch.backends.cpu.get_cpu_capability(),
            "memory_bytes": machine.memory_bytes,
            "os": machine.os,
        },
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the repository around `folder`, and whether files differ; None without one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "is_changed": bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
