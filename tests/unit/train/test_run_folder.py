"""Who may write to a run, and what is left of a folder that nothing came of."""

import os
from pathlib import Path

import pytest

from lmworks.base.errors import ConfigError
from lmworks.train.run_folder import RunFolder


class Refused(Exception):
    pass


def fail_in(run: RunFolder, *names: str) -> None:
    def work() -> None:
        with run.lock():
            for name in names:
                (run.path / name).write_text("")
            raise Refused

    with pytest.raises(Refused):
        work()


def test_a_folder_made_for_work_that_fails_is_gone_with_those_around_it(tmp_path: Path) -> None:
    fail_in(RunFolder(tmp_path / "runs" / "demo"))
    assert os.listdir(tmp_path) == []


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    fail_in(RunFolder(tmp_path / "runs"))
    assert os.listdir(tmp_path) == ["runs"]


def test_what_was_written_before_the_failure_stays(tmp_path: Path) -> None:
    fail_in(RunFolder(tmp_path / "runs"), "tokenizer.json")
    assert (tmp_path / "runs" / "tokenizer.json").exists()


def test_the_folder_stays_when_the_work_is_done(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs")
    with (
        run.lock(),
        pytest.raises(ConfigError, match=rf"process {os.getpid()} is training"),
        run.lock(),
    ):
        pass
    assert run.path.is_dir()
