"""What this machine offers: processor, usable cores, memory, instruction sets. No torch.

Limits count, not hardware: in a container the CPU quota and the memory limit of its control group
(Linux cgroup v1 and v2), and the process's CPU affinity, are what a program can use. Where a fact
cannot be had (no /proc outside Linux) the portable standard library is asked instead.
"""

import math
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

UNKNOWN_CPU = "unknown processor"


@dataclass(frozen=True)
class Machine:
    """Facts about the machine, as this process may use it."""

    cpu_model: str
    architecture: str
    """As `uname -m`: x86_64, aarch64, ..."""
    num_cores: int
    """Logical cores this process may use at once: affinity and CPU quota applied."""
    num_cores_installed: int
    """Logical cores of the machine."""
    memory_bytes: int
    """Memory this process may use: the installed memory, or its control group's limit."""
    memory_available_bytes: int
    """How much of it is free, or can be freed without swapping, now."""
    isa_flags: frozenset[str]
    """Instruction-set flags as Linux names them (avx2, avx512_bf16, amx_bf16, asimd, ...)."""
    os: str


def read_machine(*, proc: Path = PROC, cgroup: Path = CGROUP) -> Machine:
    """The machine this process runs on. The paths are for tests."""
    cpuinfo = _read(proc / "cpuinfo")
    total_bytes, available_bytes = memory_bytes(proc=proc, cgroup=cgroup)
    return Machine(
        cpu_model=_cpu_model(cpuinfo),
        architecture=platform.machine(),
        num_cores=num_usable_cores(proc=proc, cgroup=cgroup),
        num_cores_installed=os.cpu_count() or 1,
        memory_bytes=total_bytes,
        memory_available_bytes=available_bytes,
        isa_flags=_isa_flags(cpuinfo),
        os=_os_name(),
    )


def num_usable_cores(*, proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Logical cores that may run at once: affinity, then CPU quota rounded up; at least 1."""
    has_affinity = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quota = _cpu_quota(proc, cgroup)
    return max(1, math.ceil(min(allowed, quota)))


def memory_bytes(*, proc: Path = PROC, cgroup: Path = CGROUP) -> tuple[int, int]:
    """(usable, still available) memory; 0 where the system does not say."""
    meminfo = _meminfo(_read(proc / "meminfo"))
    total = meminfo.get("MemTotal") or _sysconf_bytes("SC_PHYS_PAGES")
    available = meminfo.get("MemAvailable") or _sysconf_bytes("SC_AVPHYS_PAGES")
    for folder in _cgroup_folders(proc, cgroup, controller="memory"):
        limit = _first_number(folder / "memory.max", folder / "memory.limit_in_bytes")
        # v1 writes "no limit" as a number near 2**63.
        if limit is None or limit >= total:
            continue
        used = _first_number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
        cache = _stat_number(folder / "memory.stat", "inactive_file")
        total = limit
        available = min(available, max(0, limit - used + cache))
    return total, available


def disk_free_bytes(path: Path) -> int:
    """Free space for this user on the disk that holds `path`, or its nearest existing parent."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _cpu_quota(proc: Path, cgroup: Path) -> float:
    """Cores' worth of time per second that the control groups allow; infinity for no limit."""
    quota = math.inf
    for folder in _cgroup_folders(proc, cgroup, controller="cpu"):
        fields = _read(folder / "cpu.max").split()
        if len(fields) == 2 and fields[0] != "max":
            quota = min(quota, int(fields[0]) / int(fields[1]))
        runtime_us = _first_number(folder / "cpu.cfs_quota_us")
        period_us = _first_number(folder / "cpu.cfs_period_us")
        if runtime_us is not None and period_us and runtime_us > 0:
            quota = min(quota, runtime_us / period_us)
    return quota


def _cgroup_folders(proc: Path, cgroup: Path, *, controller: str) -> list[Path]:
    """This process's control group for `controller` and all its parents: each may set a limit."""
    folders: list[Path] = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # v1 mounts each controller in a folder of its own; v2 has one tree at the root.
        root = cgroup / controller if controllers else cgroup
        group = root / path.lstrip("/")
        while group != root:
            folders.append(group)
            group = group.parent
        folders.append(root)
    return [folder for folder in folders if folder.is_dir()]


def _cpu_model(cpuinfo: str) -> str:
    for key in ("model name", "Model", "Hardware"):
        for line in cpuinfo.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key and value.strip():
                return value.strip()
    return platform.processor() or UNKNOWN_CPU


def _isa_flags(cpuinfo: str) -> frozenset[str]:
    """The `flags` (x86) or `Features` (Arm) line of the first core."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _meminfo(text: str) -> dict[str, int]:
    """Bytes by name; the file says kB and means KiB."""
    rows = [line.replace(":", " ").split() for line in text.splitlines()]
    return {row[0]: 1024 * int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}


def _os_name() -> str:
    release: dict[str, str] = {}
    if platform.system() == "Linux":
        try:
            release = platform.freedesktop_os_release()
        except OSError:
            release = {}  # minimal images have no os-release: the kernel's name must do
    name = release.get("PRETTY_NAME", platform.system())
    return f"{name}, {platform.system()} {platform.release()}"


def _sysconf_bytes(pages: str) -> int:
    if pages not in getattr(os, "sysconf_names", {}):
        return 0
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _first_number(*files: Path) -> int | None:
    """The number in the first file that holds one ("max" means no limit)."""
    for file in files:
        text = _read(file).strip()
        if text.lstrip("-").isdigit():
            return int(text)
    return None


def _stat_number(file: Path, key: str) -> int:
    for line in _read(file).splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _read(file: Path) -> str:
    """The file's text; "" where the system has no such file or does not let us read it."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
