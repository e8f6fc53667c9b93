"""`lmworks tokenizer train` among bad files, signals and limits, as a user types it."""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmworks.cli.main import main
from lmworks.tokenizer import BPETokenizer, load

TEXT = "The quick brown fox jumps over the lazy dog. The end.\n" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": TEXT}).encode()))
    return folder


def train(*argv: str | Path) -> int:
    return main(["tokenizer", "train", *map(str, argv)])


def trained(path: Path) -> BPETokenizer:
    tokenizer = load(path)
    assert isinstance(tokenizer, BPETokenizer)
    return tokenizer


def test_all_files_of_a_folder_are_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, "--vocab-size", "280", "--out", tmp_path / "t.json") == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "trained a bpe tokenizer on 0.0 MB in" in output.out


@pytest.mark.parametrize(("choice", "status"), [("skip", 0), ("fail", 1), ("stop", 2)])
def test_bad_files_are_listed_and_the_rest_is_done(
    choice: str, status: int, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.json"
    assert train(folder, "--vocab-size", "280", "--out", tmp_path / "good.json") == 0
    (folder / "bad.txt").write_bytes(b"caf\xe9")
    (folder / "gone.txt").symlink_to("nowhere")
    capsys.readouterr()
    argv = [folder, "--vocab-size", "280", "--out", out, "--on-error", choice]
    assert train(*argv) == status
    error = capsys.readouterr().err
    if choice == "stop":
        assert error.startswith("error: ")
        assert not out.exists()
        return
    assert error.startswith("warning: 2 inputs have faults")
    assert "gone.txt: cannot be read" in error
    assert "bad.txt is not UTF-8" in error
    assert load(out) == load(tmp_path / "good.json")


def test_a_single_bad_file_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    assert train(tmp_path / "bad.txt", "--out", tmp_path / "t.json") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: empty corpus: ")
    assert error.count("not UTF-8") == 1


def test_the_options_of_the_vocabulary_reach_it(folder: Path, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("zebra\n\n unicorn\n")
    out = tmp_path / "t.json"
    argv = ["--vocab-size", "300", "--out", out, "--seed-file", seeds, "--seed", "yak"]
    argv += ["--protect", "=>", "--special", "<s>", "--mode", "huggingface", "--pattern", "cl100k"]
    assert train(folder, *argv, "--max-token-bytes", "8") == 0
    tokenizer = trained(out)
    assert tokenizer.special_tokens == {"<s>": 0}
    assert tokenizer.added_tokens == {"=>": 299}
    assert [len(tokenizer.encode(word)) for word in ("zebra", " unicorn", "yak")] == [1, 1, 1]
    assert tokenizer.pattern == "cl100k"
    assert max(len(token) for token in tokenizer.tokens if token) == 8


def test_a_vocabulary_is_extended(folder: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    assert train(folder, "--vocab-size", "270", "--out", old) == 0
    assert train(folder, "--vocab-size", "280", "--extend", old, "--out", new) == 0
    assert trained(new).tokens[:269] == trained(old).tokens
    assert trained(new).vocab_size == 280


@pytest.mark.parametrize("kind", ["char", "word"])
def test_other_kinds_read_the_same_inputs(kind: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    assert train(folder, "--kind", kind, "--vocab-size", "40", "--out", out) == 0
    assert load(out).decode(load(out).encode("The fox")) == "The fox"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--kind", "char", "--extend", "x.json"], "--extend: only of --kind bpe, not char"),
        (["--kind", "word", "--format", "hf"], "--format hf is of --kind bpe"),
        (["--spill-dir", "x"], "--spill-dir is used with --max-memory only"),
        (["--save-every", "5"], "--save-every is used with --resume-dir only"),
        (["--format", "tiktoken", "--protect", "x"], "cannot express --protect"),
        (["--max-memory", "much"], "max_memory='much' is no size"),
        (["--extend", "missing.json"], "no such tokenizer file"),
        (["--seed-file", "missing.txt"], "missing.txt: cannot be read"),
        (["--min-frequency", "x"], "'x' is not a whole number"),
        (["nowhere.txt"], "nowhere.txt: no such file or directory"),
        (["https-no://x"], "https-no://x: "),
    ],
)
def test_what_cannot_be_is_one_line_before_any_work(
    argv: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "t.json"
    try:
        status: int | str | None = train(folder, *argv, "--out", out)
    except SystemExit as stop:
        status = stop.code
    error = capsys.readouterr().err
    assert status == 2
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


# ---- processes ----


# Ctrl-C is ignored where tests run in the background, and a process inherits that.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from lmworks.cli.main import main
sys.exit(main(["tokenizer", "train", *sys.argv[1:]]))
"""


@contextlib.contextmanager
def start(*argv: str | Path, cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, argv)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def send_until_it_ends(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """A signal that comes just before a call that blocks is seen after it only: send another."""
    for _ in range(60):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
            return
    raise AssertionError("the process does not end")


def wait_until_reading(process: "subprocess.Popen[str]", pipe: Path) -> int:
    """The writing end of a named pipe, once the process has opened the reading end."""
    for _ in range(600):
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
    raise AssertionError("the process does not read")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_signal_ends_it_and_leaves_nothing(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    argv = [pipe, "--out", "t.json", "--max-memory", "1GB", "--spill-dir", tmp_path]
    with start(*argv, cwd=tmp_path) as process:
        writing = wait_until_reading(process, pipe)
        os.write(writing, TEXT.encode())
        send_until_it_ends(process, number)
        _, error = process.communicate()
        os.close(writing)
    assert process.returncode == status, error
    assert "Traceback" not in error
    assert sorted(tmp_path.iterdir()) == [pipe]


def test_standard_input_is_learnt_from(tmp_path: Path) -> None:
    with start("-", "--vocab-size", "280", "--out", "t.json", cwd=tmp_path) as process:
        output, error = process.communicate(TEXT, timeout=60)
    assert process.returncode == 0, error
    assert "280 tokens" in output
    assert load(tmp_path / "t.json").vocab_size == 280
