"""The front door: fast, lazy, and helpful when a command is misspelt."""

import argparse
import importlib
import subprocess
import sys

import pytest

import lmworks
from lmworks.base.errors import ConfigError
from lmworks.cli import main as front_door
from lmworks.cli.main import COMMANDS, main

Capture = pytest.CaptureFixture[str]

HEAVY = ("torch", "numpy", "rich", "pydantic", "yaml")


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lmworks {lmworks.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_help_lists_every_command(argv: list[str], capsys: Capture) -> None:
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_an_unknown_command_names_the_nearest_one(capsys: Capture) -> None:
    assert main(["trian"]) == 2
    assert "no command 'trian'; did you mean 'train'?" in capsys.readouterr().err


def test_a_command_like_no_other_points_to_the_help(capsys: Capture) -> None:
    assert main(["zzz"]) == 2
    assert "`lmworks --help` lists them" in capsys.readouterr().err


def loaded_modules(code: str) -> set[str]:
    """Which of HEAVY a fresh interpreter has loaded after running `code`."""
    probe = f"{code}\nimport sys\nprint('\\n', *[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import lmworks",
        "import lmworks.base.storage, lmworks.base.machine, lmworks.base.errors",
        "from lmworks.cli.main import main; main(['--help'])",
        "from lmworks.cli.main import main; main(['--version'])",
    ],
)
def test_the_front_door_loads_nothing_heavy(code: str) -> None:
    assert loaded_modules(code) == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_an_example(command: str, capsys: Capture) -> None:
    """A command with subcommands has the examples in theirs."""
    shown = help_of([command], capsys)
    subcommands = [
        line.split()[0]
        for line in shown.partition("commands:")[2].partition("`lmworks")[0].splitlines()
        if line.startswith("  ")
    ]
    for sub in subcommands:
        assert "example:" in help_of([command, sub], capsys), f"{command} {sub}"
    assert subcommands or "example:" in shown


def help_of(command: list[str], capsys: Capture) -> str:
    try:
        status = main([*command, "--help"])
    except SystemExit as leave:
        status = int(leave.code or 0)
    assert status == 0
    return capsys.readouterr().out


def test_the_help_of_a_command_does_not_load_torch() -> None:
    """In one process, because a command that loads torch takes seconds."""
    code = f"""
from lmworks.cli.main import main
for command in {list(COMMANDS)!r}:
    try:
        main([command, "--help"])
    except SystemExit:
        pass
"""
    assert "torch" not in loaded_modules(code)


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    class Command:
        @staticmethod
        def main(_: list[str]) -> int:
            raise error

    monkeypatch.setattr(front_door.importlib, "import_module", lambda _: Command)
    return main(["train"])


def test_a_mistake_of_the_user_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert fail_with(ConfigError("steps=0: must be at least 1"), monkeypatch) == 2
    assert capsys.readouterr().err == "error: steps=0: must be at least 1\n"


def test_an_interrupt_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fail_with(KeyboardInterrupt(), monkeypatch) == 130


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_with(ZeroDivisionError(), monkeypatch)


def test_options_cannot_be_abbreviated() -> None:
    """Otherwise a new option could change what a script's abbreviation means."""
    from lmworks.cli.parser import make_parser

    parser = make_parser("x", "does x", "lmworks x")
    parser.add_argument("--number")
    with pytest.raises(SystemExit):
        parser.parse_args(["--num", "1"])
    assert isinstance(parser, argparse.ArgumentParser)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_own_file(command: str) -> None:
    assert callable(importlib.import_module(f"lmworks.cli.{command}").main)


def test_a_wrong_option_is_explained_in_one_line(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--bogus"])
    err = capsys.readouterr().err
    assert err.startswith("error: unrecognized arguments: --bogus; `lmworks doctor --help`")
    assert err.count("\n") == 1
