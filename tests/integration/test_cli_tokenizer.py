"""`lmworks tokenizer ...` as a user types it."""

import io
import json
from pathlib import Path

import pytest

from lmworks.cli.main import main
from lmworks.tokenizer import ByteTokenizer, load
from lmworks.tokenizer.template import Template

TEXT = "The quick brown fox jumps over the lazy dog. The end.\n" * 40


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.fixture
def tokenizer(corpus: Path, tmp_path: Path) -> Path:
    out = tmp_path / "tokenizer.json"
    assert main(["tokenizer", "train", str(corpus), "--vocab-size", "280", "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("kind", ["bpe", "char", "byte", "word"])
def test_train_writes_each_kind(
    kind: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.json"
    argv = ["train", str(corpus), "--vocab-size", "280", "--kind", kind, "--out", str(out)]
    assert main(["tokenizer", *argv]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["kind"] == kind
    assert f"trained a {kind} tokenizer" in capsys.readouterr().out


def test_train_says_when_the_text_gives_fewer_tokens(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["tokenizer", "train", str(corpus), "--out", str(tmp_path / "t.json")]
    assert main(argv) == 0
    assert "the text gives only 294 of the 10,000 tokens" in capsys.readouterr().out
    assert main([*argv, "--kind", "byte"]) == 0
    assert "the text gives" not in capsys.readouterr().out


def test_train_takes_bytes_that_are_no_text_when_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = tmp_path / "corpus.bin", tmp_path / "t.json"
    corpus.write_bytes(b"\xff\xfe" * 100)
    argv = ["tokenizer", "train", str(corpus), "--vocab-size", "258", "--out", str(out)]
    assert main(argv) == 2
    assert "--allow-invalid-utf8" in capsys.readouterr().err
    assert main([*argv, "--allow-invalid-utf8"]) == 0
    assert load(out).token_bytes(256) == b"\xff\xfe"


def test_text_of_the_command_line_that_is_not_utf8_is_shown(
    tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["tokenizer", "encode", str(tokenizer), "a\udcff", "--show"]) == 0
    assert "4 tokens, 4 bytes" in capsys.readouterr().out


def test_a_count_that_is_none_is_told_plainly(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for bad in ("ten", "0", "-5", "1.5"):
        with pytest.raises(SystemExit) as stop:
            main(["tokenizer", "compare", str(corpus), f"--vocab-size={bad}"])
        assert stop.value.code == 2
        assert f"'{bad}' is not a whole number of at least 1" in capsys.readouterr().err


def test_encoded_ids_decode_to_the_text(
    tokenizer: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    assert main(["tokenizer", "encode", str(tokenizer), "The lazy fox"]) == 0
    ids = capsys.readouterr().out
    assert main(["tokenizer", "decode", str(tokenizer), *ids.split()]) == 0
    assert capsys.readouterr().out == "The lazy fox\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(ids))
    assert main(["tokenizer", "decode", str(tokenizer)]) == 0
    assert capsys.readouterr().out == "The lazy fox\n"


def test_encode_shows_pieces(tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["tokenizer", "encode", str(tokenizer), "The é", "--show"]) == 0
    assert "bytes/token" in capsys.readouterr().out


def test_special_tokens_count_only_when_asked(
    tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    main(["tokenizer", "encode", str(tokenizer), "<|endoftext|>", "--special"])
    assert capsys.readouterr().out == "279\n"
    main(["tokenizer", "encode", str(tokenizer), "<|endoftext|>"])
    assert len(capsys.readouterr().out.split()) > 1


def test_compare_prints_the_four_kinds(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "compare", str(corpus), "--vocab-size", "280"]) == 0
    output = capsys.readouterr().out
    assert all(kind in output for kind in ("byte", "char", "word", "bpe"))


def test_inspect_shows_the_facts(tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["tokenizer", "inspect", str(tokenizer)]) == 0
    output = capsys.readouterr().out
    assert "bpe, pattern gpt2" in output
    assert "280 tokens" in output
    assert "<|endoftext|> 279" in output


@pytest.mark.parametrize("form", ["hf", "tiktoken"])
def test_foreign_formats_are_written(form: str, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = ["train", str(corpus), "--vocab-size", "280", "--format", form, "--out", str(out)]
    assert main(["tokenizer", *argv]) == 0
    assert out.stat().st_size > 1000


@pytest.mark.parametrize("command", ["train", "encode", "decode", "compare", "inspect"])
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tokenizer", command, "--help"])
    assert stop.value.code == 0
    assert f"example:\n  lmworks tokenizer {command} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["frobnicate"], "known: train"),
        (["encode", "missing.json", "x"], "no such tokenizer file"),
        (["decode", "{tokenizer}", "x"], "whole numbers"),
        (["decode", "{tokenizer}", "99999"], "not in 0..279"),
        (["encode", "{tokenizer}", "x", "--file", "y"], "not both"),
        (["train", "missing.txt", "--out", "{out}"], "missing.txt"),
        (["train", "{corpus}", "--vocab-size", "100", "--out", "{out}"], "vocab_size=100"),
        (["train", "{corpus}", "--pattern", "gpt22", "--out", "{out}"], "did you mean 'gpt2'"),
        (["train", "{corpus}", "--kind", "char", "--threads", "2", "--out", "{out}"], "--kind bpe"),
        (["train", "{corpus}", "--out", "{corpus}/t.json"], "is in the way"),
        (["compare", "missing.txt"], "cannot be read"),
    ],
)
def test_bad_input_is_one_plain_line_and_writes_nothing(
    argv: list[str],
    message: str,
    tokenizer: Path,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = corpus.with_name("t.json")
    argv = [arg.format(tokenizer=tokenizer, corpus=corpus, out=out) for arg in argv]
    assert main(["tokenizer", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert not out.exists()


def test_encode_prints_offsets_and_the_template_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.json"
    byte = ByteTokenizer(["<s>"])
    byte.save(file)
    assert main(["tokenizer", "encode", str(file), "a", "--template"]) == 2
    assert "has no template" in capsys.readouterr().err
    byte.template = Template.around(bos_id=256)
    byte.save(file)
    assert main(["tokenizer", "encode", str(file), "aé", "--template"]) == 0
    assert capsys.readouterr().out == "256 97 195 169\n"
    assert main(["tokenizer", "encode", str(file), "aé", "--template", "--offsets"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "256 0 0 '<s>'",
        "97 0 1 'a'",
        "195 1 2 '\\\\xc3'",
        "169 1 2 '\\\\xa9'",
    ]
    assert main(["tokenizer", "inspect", str(file)]) == 0
    assert "template     <s> A; of a pair <s> A <s> B\n" in capsys.readouterr().out


def test_inspect_names_only_a_few_of_many_special_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ByteTokenizer([f"<{i}>" for i in range(1000)]).save(tmp_path / "t.json")
    assert main(["tokenizer", "inspect", str(tmp_path / "t.json"), "--tokens", "2"]) == 0
    assert "specials     <0> 256, <1> 257, ... 1,000 in all\n" in capsys.readouterr().out
