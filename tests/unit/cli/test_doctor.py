"""doctor: every check's good and bad side, and the exit status."""

import dataclasses
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lmworks.base.machine import read_machine
from lmworks.cli import doctor
from lmworks.cli.doctor import Check

GIB = 1 << 30


def test_this_installation_is_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out
    for name in ("lmworks", "python", "torch", "native text", "native kernels", "bf16", "memory"):
        assert re.search(rf"^(ok|warn) +{name}", out, re.MULTILINE), name


def test_one_failed_check_makes_the_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = [Check("ok", "a", "fine"), Check("FAIL", "b", "broken", "mend it")]
    monkeypatch.setattr(doctor, "run_checks", lambda: iter(checks))
    assert doctor.main([]) == 1
    assert "-> mend it" in capsys.readouterr().out


def test_a_warning_leaves_the_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run_checks", lambda: iter([Check("warn", "a", "slow", "wait")]))
    assert doctor.main([]) == 0


def test_a_compiled_part_that_does_not_load_fails() -> None:
    def load() -> None:
        raise ImportError("no _text")

    check = doctor.check_native("text", "tokenizers", load)
    assert check.status == "FAIL"
    assert "no _text" in check.detail
    assert "pip install" in check.fix


def test_a_missing_or_old_package_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"numpy": "99.0", "no-such-package": "1.0"}
    monkeypatch.setattr(doctor, "_requirements", lambda _: needed)
    check = doctor.check_packages()
    assert check.status == "FAIL"
    assert "is older than 99.0" in check.detail
    assert "no-such-package is not installed" in check.detail


def test_versions_compare_as_numbers() -> None:
    assert doctor._numbers("2.13.0+cpu") == (2, 13, 0)
    assert doctor._numbers("2.9") < doctor._numbers("2.11")


@pytest.mark.parametrize(("forced", "status"), [("portable", "warn"), ("nonsense", "FAIL")])
def test_a_forced_instruction_set_is_pointed_out(
    monkeypatch: pytest.MonkeyPatch, forced: str, status: str
) -> None:
    monkeypatch.setenv("LMWORKS_ISA", forced)
    check = doctor.check_kernels()
    assert (check.status, "unset LMWORKS_ISA" in check.fix) == (status, True)


def test_more_threads_than_cores_is_a_warning() -> None:
    machine = dataclasses.replace(read_machine(), num_cores=0)
    check = doctor.check_threads(machine)
    assert (check.status, "OMP_NUM_THREADS" in check.fix) == ("warn", True)


def test_little_memory_and_disk_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = dataclasses.replace(read_machine(), memory_bytes=8 * GIB, memory_available_bytes=GIB)
    assert doctor.check_memory(machine).status == "warn"
    monkeypatch.setattr(doctor, "disk_free_bytes", lambda _: GIB)
    assert doctor.check_disk(Path()).status == "warn"


def test_slow_bf16_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lmworks.train import accelerate

    speeds: dict[Any, float] = {torch.float32: 100e9, torch.bfloat16: 10e9}
    monkeypatch.setattr(accelerate, "gemm_flops_per_s", lambda dtype, **_: speeds[dtype])
    check = doctor.check_bf16(read_machine())
    assert (check.status, "precision=fp32" in check.fix) == ("warn", True)


def test_no_compiler_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert doctor.check_compiler().status == "warn"


def test_a_missing_extra_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name == "tensorboard" else "1.0")
    checks = {check.name: check for check in doctor.check_extras()}
    assert checks["[track]"].status == "warn"
    assert "tensorboard" in checks["[track]"].detail
    assert "pip install 'lmworks[track]'" in checks["[track]"].fix
    assert checks["[data]"].status == "ok"


def test_every_extra_it_lists_exists() -> None:
    provided = metadata.metadata("lmworks").get_all("Provides-Extra") or []
    assert set(doctor.EXTRAS) <= set(provided)


def test_a_failing_check_of_torch_skips_those_that_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = Check("FAIL", "torch", "does not load")
    monkeypatch.setattr(doctor, "check_torch", lambda: broken)
    names = {check.name for check in doctor.run_checks()}
    assert "bf16" not in names
    assert {"native text", "memory", "disk", "compiler"} <= names
