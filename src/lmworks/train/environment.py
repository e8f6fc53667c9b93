"""What a run was made with: versions, machine, git state, command."""

import contextlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "numpy", "safetensors", "pydantic")
_GIT_TIMEOUT_S = 5.0


def describe_environment() -> dict[str, Any]:
    """Plain data for environment.json."""
    import torch

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
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the repository around `folder`, and whether files differ; None without one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "is_changed": bool(changed)}


def cpu_name() -> str:
    """The processor's model name, or its architecture where Linux does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.machine()


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
