"""Every `lmworks` command in the README and the docs is one that exists, and marked ones run.

A command in a fenced shell block must parse: the command and its options exist. If the
line before the block is `<!-- run -->`, its commands are executed, in a folder that looks like the
repository and has a trained run in `runs/demo`.
"""

import argparse
import io
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from lmworks.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

FENCE = re.compile(
    r"^(?P<mark><!-- run -->\n+)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
SHELL = {"", "sh", "console", "bash", "shell"}
PROGRAMS = {"lmworks", ".venv/bin/lmworks"}
OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "(", ")"}


class Command(NamedTuple):
    page: str
    argv: list[str]
    is_run: bool


def commands(page: Path) -> Iterator[Command]:
    """The `lmworks ...` commands of a page, without what a shell does around them."""
    # Blocks of other languages are matched too: the end of one must not pass for a beginning.
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        if block["language"] not in SHELL:
            continue
        for line in block["body"].replace("\\\n", " ").splitlines():
            for words in _simple_commands(line.removeprefix("$ ")):
                if words and words[0] in PROGRAMS:
                    name = page.relative_to(ROOT).as_posix()
                    yield Command(name, words[1:], block["mark"] is not None)


def _simple_commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word in OPERATORS:
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:
        return  # an apostrophe in the output of a command: no command of ours
    yield words


ALL = [command for page in PAGES for command in commands(page)]
TO_RUN = [command for command in ALL if command.is_run]


def name_of(command: Command) -> str:
    return f"{command.page}: lmworks {' '.join(command.argv)}"


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Models this small only wait for their threads, above all beside other tests."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


class Parsed(Exception):
    """The options are right; nothing more is wanted."""


@pytest.mark.parametrize("command", ALL, ids=name_of)
def test_a_documented_command_exists_with_its_options(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("parse_args", "parse_intermixed_args"):
        original = getattr(argparse.ArgumentParser, method)

        def parse(*args: Any, original: Any = original, **options: Any) -> None:
            original(*args, **options)
            raise Parsed

        monkeypatch.setattr(argparse.ArgumentParser, method, parse)
    assert exit_status(command.argv) == 0


def exit_status(argv: list[str]) -> int:
    try:
        return main(argv)
    except Parsed:
        return 0
    except SystemExit as leave:  # argparse: 0 after --help, 2 for an option that does not exist
        return int(leave.code or 0)


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """examples, recipes and a run that was trained for three steps."""
    folder = tmp_path_factory.mktemp("docs")
    texts = folder / "examples" / "text"
    texts.mkdir(parents=True)
    for file in (ROOT / "examples" / "text").glob("*.txt"):
        # Cut at a line: enough to train on, little enough to be quick.
        text = file.read_text(encoding="utf-8")
        (texts / file.name).write_text(text[: text.index("\n", 15_000)], encoding="utf-8")
    shutil.copytree(ROOT / "examples" / "tasks", folder / "examples" / "tasks")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "recipes/tiny_cpu.yaml", "--run", "runs/demo", *TINY]) == 0
    return folder


TINY = [
    "data.val_fraction=0.3",
    "tokenizer.vocab_size=300",
    "model.num_layers=1",
    "model.d_model=64",
    "model.max_seq_len=64",
    "train.context_length=64",
    "train.batch_size=4",
    "train.steps=3",
    'train.compile="off"',
    "train.precision=fp32",
    "schedule.warmup_steps=1",
    "eval.every=3",
    "checkpoint.every=3",
    "sample.every=3",
]


@pytest.mark.parametrize("command", TO_RUN, ids=name_of)
def test_a_command_that_is_marked_to_run_succeeds(
    command: Command, demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    shutil.copytree(demo_folder, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Emma\n")))
    assert main(command.argv) == 0


def test_the_readme_shows_commands() -> None:
    assert any(command.page == "README.md" for command in ALL)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("lmworks eval runs/demo --json | head -1", [["eval", "runs/demo", "--json"]]),
        ("$ echo hi | lmworks generate r --prompt -", [["generate", "r", "--prompt", "-"]]),
        ('lmworks chat r --stop "a | b"  # why', [["chat", "r", "--stop", "a | b"]]),
        ("lmworks data \\\n  pack x", [["data", "pack", "x"]]),
        (".venv/bin/lmworks chat r", [["chat", "r"]]),
        ("it's not a command of lmworks", []),
    ],
)
def test_commands_are_found_in_shell_lines(
    line: str, found: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"text\n\n<!-- run -->\n```console\n{line}\n```\n")
    monkeypatch.setitem(commands.__globals__, "ROOT", tmp_path)
    assert [command.argv for command in commands(page)] == found
    assert all(command.is_run for command in commands(page))
