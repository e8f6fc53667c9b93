"""`lmworks doctor`: is everything in place, and what will the machine give?

Every line is one check: `ok`, `warn` (works, but something is missing or slow) or `FAIL` (something
will not run), the last two with what to do about it. The exit status is 1 if anything fails.
"""

import importlib
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import lmworks
from lmworks.base.errors import ConfigError
from lmworks.base.machine import Machine, disk_free_bytes, read_machine
from lmworks.cli.parser import make_parser

GIB = 1 << 30
MIN_MEMORY_BYTES = 3 * GIB
"""What `make demo` needs at its peak."""
MIN_DISK_BYTES = 2 * GIB
"""A run of the demo recipe with its checkpoints, with room to spare."""

EXTRAS = {
    "data": "compressed text (.jsonl.zst)",
    "track": "TensorBoard, W&B",
    "report": "plots in report.html",
    "peers": "comparisons with other libraries",
}
"""Optional parts of the package that a user may want; `dev` is for work on the package itself."""

_PROBE_S = 0.08
"""Per number format."""


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    status: Literal["ok", "warn", "FAIL"]
    name: str
    detail: str
    fix: str = ""


def main(argv: list[str]) -> int:
    """Print all checks; 1 if one fails."""
    make_parser(
        "doctor",
        "Check the installation and show what this machine offers: versions, cores, instruction\n"
        "set, memory, torch build, optional parts.",
        "lmworks doctor",
    ).parse_args(argv)
    has_failed = False
    for check in run_checks():
        print(f"{check.status:<5} {check.name:<13} {check.detail}", flush=True)
        if check.fix:
            print(f"{'':<19} -> {check.fix}", flush=True)
        has_failed |= check.status == "FAIL"
    return int(has_failed)


def run_checks() -> Iterator[Check]:
    """All checks; those that need torch are left out when torch does not load."""
    machine = read_machine()
    yield Check("ok", "lmworks", f"{lmworks.__version__} in {Path(lmworks.__file__).parent}")
    yield Check("ok", "python", f"{platform.python_version()} on {machine.os}")
    yield check_packages()
    torch_check = check_torch()
    yield torch_check
    yield check_native("text", "tokenizers", lambda: importlib.import_module("lmworks._text"))
    if torch_check.status != "FAIL":
        yield check_kernels()
        yield check_threads(machine)
        yield check_bf16(machine)
    yield check_memory(machine)
    yield check_disk(Path.cwd())
    yield check_compiler()
    yield from check_extras()


def check_packages() -> Check:
    """The packages that lmworks cannot do without, in the versions that it needs."""
    needed = _requirements("")
    problems = [problem for name in needed if (problem := _problem(name, needed[name]))]
    if problems:
        return Check("FAIL", "packages", "; ".join(problems), "pip install --upgrade lmworks")
    shown = ", ".join(f"{name} {metadata.version(name)}" for name in needed if name != "torch")
    return Check("ok", "packages", shown)


def check_torch() -> Check:
    """torch loads; its build has the fast libraries."""
    try:
        import torch
    except (ImportError, OSError) as err:
        return Check(
            "FAIL", "torch", f"does not load: {err}", "pip install --force-reinstall torch"
        )
    parts = {"mkl": torch.backends.mkl, "onednn": torch.backends.mkldnn}
    present = [name for name, backend in parts.items() if backend.is_available()]
    detail = f"{torch.__version__}, CPU capability {torch.backends.cpu.get_cpu_capability()}"
    detail += f", with {' and '.join(present)}" if present else ""
    if torch.cuda.is_available():
        detail += f", CUDA {torch.version.cuda} on {torch.cuda.get_device_name(0)}"
    if "onednn" not in present:
        fix = "install a build of torch with oneDNN: without it bf16 matrix products are slow"
        return Check("warn", "torch", detail + ", no onednn", fix)
    return Check("ok", "torch", detail)


def check_native(name: str, purpose: str, load: Callable[[], object]) -> Check:
    """A compiled part of the package loads."""
    try:
        load()
    except (ImportError, OSError, ConfigError) as err:
        return Check(
            "FAIL",
            f"native {name}",
            f"the compiled {purpose} do not load: {err}",
            "reinstall: pip install --force-reinstall --no-deps lmworks (needs a C++20 compiler)",
        )
    return Check("ok", f"native {name}", f"compiled {purpose} loaded")


def check_kernels() -> Check:
    """The compiled kernels load; says which instruction set they use."""
    from lmworks.ops import native

    loaded = check_native("kernels", "kernels", native.load)
    if loaded.status == "FAIL":
        return loaded
    forced = os.environ.get("LMWORKS_ISA", "")
    try:
        isa = native.isa_name()
    except ConfigError as err:
        return Check("FAIL", loaded.name, str(err), "unset LMWORKS_ISA")
    if forced:
        detail = f"instruction set {isa}, forced by LMWORKS_ISA"
        return Check("warn", loaded.name, detail, "unset LMWORKS_ISA for the fastest one")
    if isa == "portable" and platform.machine() in ("x86_64", "AMD64"):
        return Check("warn", loaded.name, "instruction set portable: this CPU has no AVX2")
    return Check("ok", loaded.name, f"instruction set {isa}")


def check_threads(machine: Machine) -> Check:
    """torch uses as many threads as there are cores to run them."""
    import torch

    num_threads = torch.get_num_threads()
    cores = f"{machine.num_cores} of {machine.num_cores_installed} cores usable"
    detail = f"{machine.cpu_model}, {cores}, {num_threads} torch threads"
    if num_threads > machine.num_cores:
        fix = f"threads beyond the cores only wait: export OMP_NUM_THREADS={machine.num_cores}"
        return Check("warn", "processor", detail, fix)
    return Check("ok", "processor", detail)


def check_bf16(machine: Machine) -> Check:
    """Whether bf16 matrix products are faster than fp32 here, by trying both."""
    import torch

    from lmworks.train import accelerate

    fp32, bf16 = (
        accelerate.gemm_flops_per_s(dtype, budget_s=_PROBE_S) / 1e9
        for dtype in (torch.float32, torch.bfloat16)
    )
    units = sorted(machine.isa_flags & {"amx_bf16", "avx512_bf16", "bf16", "svebf16"})
    detail = f"{bf16:,.0f} GFLOP/s, fp32 {fp32:,.0f} ({bf16 / fp32:.1f} times), "
    detail += f"CPU has {', '.join(units)}" if units else "no bf16 instructions in this CPU"
    if bf16 < fp32:
        return Check(
            "warn", "bf16", detail, "bf16 is slower here: use train.precision=fp32 (or auto)"
        )
    return Check("ok", "bf16", detail)


def check_memory(machine: Machine) -> Check:
    """Enough memory for the demo."""
    free, total = machine.memory_available_bytes, machine.memory_bytes
    detail = f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB"
    if total and free < MIN_MEMORY_BYTES:
        return Check(
            "warn",
            "memory",
            detail,
            f"the demo needs {MIN_MEMORY_BYTES // GIB} GiB: close programs, or lower"
            " train.micro_batch_size",
        )
    return Check("ok", "memory", detail)


def check_disk(folder: Path) -> Check:
    """Enough disk space for checkpoints in the working directory."""
    free = disk_free_bytes(folder)
    detail = f"{free / GIB:.1f} GiB free in {folder}"
    if free < MIN_DISK_BYTES:
        fix = f"runs and checkpoints need about {MIN_DISK_BYTES // GIB} GiB: free some space"
        return Check("warn", "disk", detail, fix)
    return Check("ok", "disk", detail)


def check_compiler() -> Check:
    """A C++ compiler, which torch.compile and building the package need."""
    from lmworks.train.compile import compiler

    path = compiler()
    if path is not None:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout:
            return Check("ok", "compiler", f"{done.stdout.splitlines()[0]} ({path})")
    return Check(
        "warn",
        "compiler",
        "no C++ compiler found: training cannot use torch.compile",
        "install one, for example `apt install g++`, or set CXX",
    )


def check_extras() -> Iterator[Check]:
    """Which optional parts are installed; a missing one is a fact, not a fault."""
    for extra, purpose in EXTRAS.items():
        missing = [name for name in _requirements(extra) if not _version(name)]
        if missing:
            yield Check(
                "warn",
                f"[{extra}]",
                f"{purpose}: {', '.join(missing)} not installed",
                f"pip install 'lmworks[{extra}]' if you want it",
            )
        else:
            yield Check("ok", f"[{extra}]", purpose)


def _requirements(extra: str) -> dict[str, str]:
    """Package -> lowest version of the base install ("") or of one extra."""
    found = {}
    for line in metadata.requires("lmworks") or []:
        requirement, _, marker = line.partition(";")
        wanted = re.search(r"extra == ['\"](\w+)['\"]", marker)
        if (wanted.group(1) if wanted else "") == extra:
            name, _, version = requirement.partition(">=")
            found[name.strip()] = version.strip()
    return found


def _problem(name: str, lowest: str) -> str:
    version = _version(name)
    if not version:
        return f"{name} is not installed"
    if _numbers(version) < _numbers(lowest):
        return f"{name} {version} is older than {lowest}"
    return ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
