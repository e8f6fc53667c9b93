"""Machine facts from made-up /proc and cgroup trees, and from the real ones."""

import os
from pathlib import Path

import pytest

from lmworks.base import machine

CPUINFO = """processor\t: 0
model name\t: Example CPU @ 3.00GHz
flags\t\t: fpu avx2 avx512f amx_bf16
"""
MEMINFO = (
    "MemTotal:       16384 kB\nMemFree:   100 kB\nMemAvailable:    8192 kB\nHugePages_Total: 0\n"
)


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "cpuinfo", CPUINFO)
    write(proc / "meminfo", MEMINFO)
    write(proc / "self/cgroup", "0::/outer/inner\n")
    (cgroup / "outer/inner").mkdir(parents=True)
    return proc, cgroup


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_model_and_flags_come_from_cpuinfo(trees: tuple[Path, Path]) -> None:
    facts = machine.read_machine(proc=trees[0], cgroup=trees[1])
    assert facts.cpu_model == "Example CPU @ 3.00GHz"
    assert facts.isa_flags == {"fpu", "avx2", "avx512f", "amx_bf16"}
    assert facts.memory_bytes == 16384 * 1024
    assert facts.memory_available_bytes == 8192 * 1024


def test_a_memory_limit_of_a_parent_group_counts(trees: tuple[Path, Path]) -> None:
    proc, cgroup = trees
    write(cgroup / "outer/memory.max", str(4 << 20))
    write(cgroup / "outer/memory.current", str(3 << 20))
    write(cgroup / "outer/memory.stat", f"anon 5\ninactive_file {1 << 20}\n")
    write(cgroup / "outer/inner/memory.max", "max\n")
    assert machine.memory_bytes(proc=proc, cgroup=cgroup) == (4 << 20, 2 << 20)


def test_a_cpu_quota_below_one_core_is_one_core(trees: tuple[Path, Path]) -> None:
    proc, cgroup = trees
    write(cgroup / "outer/inner/cpu.max", "50000 100000\n")
    assert machine.num_usable_cores(proc=proc, cgroup=cgroup) == 1


def test_without_a_quota_the_affinity_decides(trees: tuple[Path, Path]) -> None:
    proc, cgroup = trees
    write(cgroup / "outer/inner/cpu.max", "max 100000\n")
    want = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert machine.num_usable_cores(proc=proc, cgroup=cgroup) == want


def test_version_1_control_groups_are_read(trees: tuple[Path, Path]) -> None:
    proc, cgroup = trees
    write(proc / "self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box\n")
    write(cgroup / "memory/box/memory.limit_in_bytes", str(1 << 20))
    write(cgroup / "memory/box/memory.usage_in_bytes", str(1 << 19))
    write(cgroup / "memory/memory.limit_in_bytes", str(2**63 - 4096))
    write(cgroup / "cpu/box/cpu.cfs_quota_us", "100000")
    write(cgroup / "cpu/box/cpu.cfs_period_us", "100000")
    assert machine.memory_bytes(proc=proc, cgroup=cgroup) == (1 << 20, 1 << 19)
    assert machine.num_usable_cores(proc=proc, cgroup=cgroup) == 1


def test_a_system_without_proc_still_gives_facts(tmp_path: Path) -> None:
    facts = machine.read_machine(proc=tmp_path / "no", cgroup=tmp_path / "no")
    assert facts.cpu_model
    assert facts.num_cores >= 1
    assert facts.isa_flags == frozenset()


def test_this_machine_has_cores_and_memory() -> None:
    facts = machine.read_machine()
    assert 1 <= facts.num_cores <= facts.num_cores_installed
    assert 0 <= facts.memory_available_bytes <= facts.memory_bytes
    assert facts.memory_bytes > 0


def test_free_disk_space_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert machine.disk_free_bytes(tmp_path / "a/b") > 0
