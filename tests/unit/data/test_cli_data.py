"""`lmworks data`: what the two commands print, and how they end."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lmworks.cli.main import main
from lmworks.data.shard import read_manifest
from lmworks.tokenizer import ByteTokenizer


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("\n<|endoftext|>\n".join(f"Chapter {i}. All is well." for i in range(40)))
    return file


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    file = tmp_path / "tokenizer.json"
    ByteTokenizer().save(file)
    return file


@pytest.fixture
def packed(tmp_path: Path, text_file: Path, tokenizer_file: Path) -> Path:
    out = tmp_path / "tokens"
    arguments = ["--tokenizer", str(tokenizer_file), "--out", str(out), "--val-fraction", "0.2"]
    assert main(["data", "pack", str(text_file), *arguments]) == 0
    return out


def test_pack_prints_a_summary_and_what_to_type_next(
    capsys: pytest.CaptureFixture[str], packed: Path, tokenizer_file: Path
) -> None:
    printed = capsys.readouterr().out
    assert printed.startswith("packed 40 documents, 950 bytes of text, into 990 tokens: 1.00 bytes")
    assert f"{packed / 'train'}  33 documents, " in printed
    assert f"{packed / 'val'}  7 documents, " in printed
    assert f"next: lmworks data inspect {packed} --tokenizer {tokenizer_file}\n" in printed


def test_pack_takes_every_option(tmp_path: Path, tokenizer_file: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"body": "one"}\n{"body": "two"}\n')
    command = ["data", "pack", str(source), "--tokenizer", str(tokenizer_file)]
    options = (
        "--threads 2 --on-error fail --shard-tokens 4 --text-field body --overwrite"
        " --whole-documents"
    )
    out = tmp_path / "o"
    assert main([*command, "--out", str(out), *options.split()]) == 0
    assert main([*command, "--out", str(out), *options.split()]) == 0
    assert len(read_manifest(out).shards) == 2


def test_inspect_shows_counts_and_the_first_text(
    packed: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    command = ["data", "inspect", str(packed), "--tokenizer", str(tokenizer_file), "--verify"]
    assert main([*command, "--tokens", "7"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("every checksum matches") == 2
    assert "begins     'Chapter'" in printed
    assert "tokenizer  byte, vocab_size 257, largest id 256" in printed


def test_inspect_without_a_tokenizer_shows_ids(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["data", "inspect", str(packed / "val"), "--tokens", "3"]) == 0
    assert "begins     67 104 97  (--tokenizer FILE decodes them)" in capsys.readouterr().out


def test_inspect_refuses_a_changed_shard(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = packed / "train" / "shard-00000.bin"
    file.write_bytes(b"\x01" + file.read_bytes()[1:])
    assert main(["data", "inspect", str(packed)]) == 0
    assert main(["data", "inspect", str(packed), "--verify"]) == 2
    assert "shard-00000.bin: its content has changed" in capsys.readouterr().err


def test_inspect_refuses_another_tokenizer(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    ByteTokenizer(special_tokens=("<|endoftext|>", "<|user|>")).save(other)
    assert main(["data", "inspect", str(packed), "--tokenizer", str(other)]) == 2
    assert "was packed with another tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["pack"], ["inspect"]])
def test_help_names_the_commands_or_an_example(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):  # argparse ends the process itself
        main(["data", *command, "--help"])
    assert "lmworks data" in capsys.readouterr().out


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "unpack"]) == 2
    assert "known: inspect, pack" in capsys.readouterr().err


def test_a_terminated_pack_removes_what_it_began(tmp_path: Path, tokenizer_file: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("a")
    script = (
        "import signal; from lmworks.data import pack as module\n"
        "real = module.DocumentReader.__iter__\n"
        "def stuck(reader):\n"
        "    yield next(real(reader))\n"
        "    print('reading', flush=True); signal.pause()\n"
        "module.DocumentReader.__iter__ = stuck\n"
        "from lmworks.cli.main import main\n"
        f"main(['data', 'pack', {str(source)!r}, '--tokenizer',"
        f" {str(tokenizer_file)!r}, '--out', {str(tmp_path / 'o')!r}])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"reading\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "tokenizer.json"]


def test_bad_files_among_good_ones_are_listed_and_the_rest_is_packed(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("one\n<|endoftext|>\ntwo")
    (texts / "b.txt").write_bytes(b"bad \xff")
    (texts / "c.jsonl").write_text('{"text": "three"}\n{oops\n')
    (texts / "d.txt").symlink_to("nowhere")
    (texts / "e.txt").write_text("four")
    command = ["data", "pack", str(texts), "--tokenizer", str(tokenizer_file), "--out"]
    assert main([*command, str(tmp_path / "o")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("packed 4 documents")
    warning, *faults = printed.err.strip().splitlines()
    assert warning.startswith("warning: 3 inputs have faults")
    assert ["d.txt" in faults[0], "b.txt:1: not UTF-8" in faults[1]] == [True, True]
    assert "c.jsonl:2: not valid JSON" in faults[2]
    assert faults[2].endswith("the documents before that (1) are used")
    assert main([*command, str(tmp_path / "p"), "--on-error", "fail"]) == 1
    assert (tmp_path / "p").is_dir()
    capsys.readouterr()
    assert main([*command, str(tmp_path / "q"), "--on-error", "stop"]) == 2
    assert not (tmp_path / "q").exists()


def test_when_every_file_is_bad_nothing_is_packed(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.txt").write_bytes(b"bad \xff")
    command = ["data", "pack", str(tmp_path / "b.txt"), "--tokenizer", str(tokenizer_file)]
    assert main([*command, "--out", str(tmp_path / "o")]) == 2
    assert "no text in" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
