"""Packing: the output depends on the text and the arguments alone, and is whole or absent."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lmworks.base.errors import ConfigError, DataError, StorageError
from lmworks.data.pack import cut_at_blank_lines, pack, split_hash
from lmworks.data.shard import open_shards

MANY = [f"Document {i}.\n\n" + "word " * (i % 17) for i in range(400)]


def write_jsonl(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def documents(folder: Path) -> list[str]:
    """The texts of a shard folder, decoded."""
    shards = open_shards(folder, verify=True)
    ids = shards.read(0, shards.num_tokens).tolist()
    starts = [*shards.document_starts().tolist(), len(ids)]
    assert all(ids[end - 1] == 256 for end in starts[1:])
    return [bytes(ids[a : b - 1]).decode() for a, b in pairwise(starts)]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_packed_documents_read_back(tmp_path: Path, tokenizer: Any) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", MANY)
    report = pack([source], tmp_path / "out", tokenizer)
    assert documents(tmp_path / "out") == MANY
    (manifest,) = report.manifests.values()
    assert manifest.text_bytes == sum(len(text.encode()) for text in MANY)
    assert manifest.num_tokens == manifest.text_bytes + len(MANY)
    assert report.num_documents == manifest.num_documents == len(MANY)
    assert report.bytes_per_token == 1.0
    assert manifest.sources == (str(source),)
    assert manifest.max_token_id == 256
    assert manifest.tokenizer_fingerprint == tokenizer.fingerprint


def test_the_output_does_not_depend_on_the_number_of_threads(
    tmp_path: Path, tokenizer: Any
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [text * 300 for text in MANY])
    for threads in (1, 2):
        pack(
            [source],
            tmp_path / f"out{threads}",
            tokenizer,
            num_threads=threads,
            val_fraction=0.2,
            max_shard_tokens=1_000_000,
        )
    alone = files(tmp_path / "out1")
    assert alone == files(tmp_path / "out2")
    assert "train/shard-00003.bin" in alone


def test_a_vocabulary_above_65536_is_stored_in_32_bits(tmp_path: Path, make_tokenizer: Any) -> None:
    pack([write_jsonl(tmp_path / "a.jsonl", MANY)], tmp_path / "o", make_tokenizer(wide=True))
    assert open_shards(tmp_path / "o").manifest.dtype == "uint32"
    assert documents(tmp_path / "o") == MANY


def test_train_and_val_partition_the_documents_by_their_content(
    tmp_path: Path, tokenizer: Any
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", MANY)
    backwards = write_jsonl(tmp_path / "b.jsonl", [*reversed(MANY), "one more"])
    pack([source], tmp_path / "a", tokenizer, val_fraction=0.25)
    pack([backwards], tmp_path / "b", tokenizer, val_fraction=0.25)
    val = documents(tmp_path / "a" / "val")
    assert val == [text for text in MANY if split_hash(text) < 0.25]
    assert documents(tmp_path / "a" / "train") == [t for t in MANY if split_hash(t) >= 0.25]
    assert set(val) <= set(documents(tmp_path / "b" / "val"))
    assert 60 < len(val) < 140


def test_one_book_is_split_at_blank_lines_and_its_pieces_stay_together(
    tmp_path: Path, tokenizer: Any
) -> None:
    paragraphs = [f"Paragraph {i} " + "x" * 80 for i in range(300)]
    (tmp_path / "book.txt").write_text("\n\n".join(paragraphs) + "\n")
    pack([tmp_path / "book.txt"], tmp_path / "o", tokenizer, val_fraction=0.2, piece_chars=1000)
    sides = {side: documents(tmp_path / "o" / side) for side in ("train", "val")}
    runs = sides["train"] + sides["val"]
    assert sorted(p for run in runs for p in run.split("\n\n")) == sorted(paragraphs)
    assert len(sides["train"]) - 1 <= len(sides["val"]) <= len(sides["train"]) + 1
    assert max(map(len, sides["train"])) > 2000


def test_whole_documents_are_not_cut(tmp_path: Path, tokenizer: Any) -> None:
    texts = [f"{i}" * 50 + "\n\nend" for i in range(20)]
    pack(
        [write_jsonl(tmp_path / "a.jsonl", texts)],
        tmp_path / "o",
        tokenizer,
        val_fraction=0.5,
        piece_chars=None,
    )
    sides = [documents(tmp_path / "o" / side) for side in ("train", "val")]
    assert sorted(sides[0] + sides[1]) == sorted(texts)


@pytest.mark.parametrize("text", ["", "a", "a\n\nb", "a\n\n\n \nb\n\nc\n", "\n\n", "a" * 9])
@pytest.mark.parametrize("piece_chars", [1, 2, 3, 100])
def test_pieces_join_to_the_text(text: str, piece_chars: int) -> None:
    pieces = cut_at_blank_lines(text, piece_chars)
    assert "".join(pieces) == text
    assert all(len(piece) >= piece_chars and piece.endswith("\n") for piece in pieces[:-1])


def test_text_that_looks_like_the_end_token_stays_text(tmp_path: Path, tokenizer: Any) -> None:
    texts = ["a <|endoftext|> b", "c"]
    pack([write_jsonl(tmp_path / "a.jsonl", texts)], tmp_path / "o", tokenizer)
    assert documents(tmp_path / "o") == texts


def test_a_corpus_of_one_character_packs(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "a.txt").write_text("x")
    pack([tmp_path / "a.txt"], tmp_path / "o", tokenizer)
    assert documents(tmp_path / "o") == ["x"]


@pytest.mark.parametrize("content", ["", "\n\n", "<|endoftext|>\n<|endoftext|>\n"])
def test_an_empty_corpus_is_refused_and_nothing_is_left(
    tmp_path: Path, tokenizer: Any, content: str
) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=r"no text in .*a\.txt: every document is empty"):
        pack([tmp_path / "a.txt"], tmp_path / "o", tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_corpus_that_cannot_be_split_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"only one piece of text .*; give more text"):
        pack([tmp_path / "a.txt"], tmp_path / "o", tokenizer, val_fraction=0.1)


def test_a_fraction_that_leaves_a_side_empty_names_one_that_does_not(
    tmp_path: Path, tokenizer: Any
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", MANY[:5])
    for fraction, side in ((1e-6, "val"), (1 - 1e-6, "train")):
        with pytest.raises(ConfigError, match=f"leaves {side} empty") as caught:
            pack([source], tmp_path / "o", tokenizer, val_fraction=fraction)
        better = float(str(caught.value).rpartition("val_fraction=")[2].split()[0])
        pack([source], tmp_path / side, tokenizer, val_fraction=better)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"val_fraction": 1.0}, "val_fraction=1.0 must be at least 0 and below 1"),
        ({"val_fraction": -0.1}, "val_fraction=-0.1 must be"),
        ({"num_threads": 1025}, "num_threads=1025 must be at most 1024"),
        ({"num_threads": 0}, "num_threads=0 must be at least 1"),
        ({"max_shard_tokens": 0}, "max_shard_tokens=0 must be at least 1"),
        ({"piece_chars": 0}, "piece_chars=0 must be at least 1"),
    ],
)
def test_arguments_out_of_range_are_refused(
    tmp_path: Path, tokenizer: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        pack([tmp_path], tmp_path / "o", tokenizer, **arguments)


def test_a_tokenizer_without_end_of_text_is_refused(tmp_path: Path, make_tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"byte tokenizer has no <\|endoftext\|> token"):
        pack([tmp_path], tmp_path / "o", make_tokenizer(has_eot=False))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_tokenizer_whose_ids_exceed_its_vocabulary_is_refused(
    tmp_path: Path, make_tokenizer: Any, threads: int
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", MANY)
    with pytest.raises(DataError, match=r"token id 256 is not below .*vocab_size=50"):
        pack([source], tmp_path / "o", make_tokenizer(vocab_size=50), num_threads=threads)
    assert not (tmp_path / "o").exists()


def test_a_file_whose_name_is_not_utf8_is_packed(tmp_path: Path, tokenizer: Any) -> None:
    source = tmp_path / os.fsdecode(b"caf\xe9.txt")
    source.write_text("x")
    pack([source], tmp_path / "o", tokenizer)
    assert open_shards(tmp_path / "o").manifest.sources == (f"{tmp_path}/caf\\xe9.txt",)


@pytest.mark.parametrize("threads", [1, 2])
def test_bpe_ids_are_those_of_each_document_alone(tmp_path: Path, threads: int) -> None:
    from lmworks.tokenizer.train import train_bpe_from_iterator

    bpe = train_bpe_from_iterator(MANY, 400, num_threads=1)
    texts = [*MANY, "<|endoftext|> in the text", " ", "é" * 5000]
    pack([write_jsonl(tmp_path / "a.jsonl", texts)], tmp_path / "o", bpe, num_threads=threads)
    shards = open_shards(tmp_path / "o", verify=True)
    each = [bpe.encode(text, disallowed_special=()) for text in texts if text.strip()]
    wanted = [token_id for ids in each for token_id in (*ids, bpe.eot_id)]
    assert shards.read(0, shards.num_tokens).tolist() == wanted


def test_a_fault_in_the_input_leaves_nothing(tmp_path: Path, tokenizer: Any) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", MANY)
    source.write_text(source.read_text() + "{oops\n")
    for threads in (1, 2):
        with pytest.raises(DataError, match=r"a\.jsonl:401: not valid JSON"):
            pack([source], tmp_path / "o", tokenizer, num_threads=threads)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_an_existing_folder_is_refused_unless_overwritten(tmp_path: Path, tokenizer: Any) -> None:
    old = write_jsonl(tmp_path / "a.jsonl", ["old"])
    new = write_jsonl(tmp_path / "b.jsonl", MANY)
    pack([old], tmp_path / "o", tokenizer)
    with pytest.raises(ConfigError, match=r"o exists already; .*--overwrite"):
        pack([new], tmp_path / "o", tokenizer)
    assert documents(tmp_path / "o") == ["old"]
    pack([new], tmp_path / "o", tokenizer, val_fraction=0.2, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["train", "val"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl", "o"]


def test_a_failed_overwrite_keeps_the_old_folder(tmp_path: Path, tokenizer: Any) -> None:
    pack([write_jsonl(tmp_path / "a.jsonl", MANY)], tmp_path / "o", tokenizer)
    (tmp_path / "bad.txt").write_bytes(b"x\xff")
    with pytest.raises(DataError):
        pack([tmp_path / "bad.txt"], tmp_path / "o", tokenizer, overwrite=True)
    assert documents(tmp_path / "o") == MANY
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "bad.txt", "o"]


def test_overwrite_never_replaces_a_folder_of_something_else(
    tmp_path: Path, tokenizer: Any
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", MANY)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not a folder of token shards"):
        pack([source], tmp_path / "thesis", tokenizer, overwrite=True)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_an_empty_folder_is_used(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "o").mkdir()
    pack([write_jsonl(tmp_path / "a.jsonl", ["x"])], tmp_path / "o", tokenizer)
    assert documents(tmp_path / "o") == ["x"]


def test_progress_is_reported_up_to_the_end(tmp_path: Path, tokenizer: Any) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["x" * 900_000] * 9)
    seen: list[tuple[int, int]] = []
    pack([source], tmp_path / "o", tokenizer, progress=lambda *done: seen.append(done))
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert seen[-1] == (source.stat().st_size, source.stat().st_size)


CHILD = """
import resource, signal, sys
sys.path.insert(0, {here!r})
from fake_tokenizer import FakeTokenizer
from lmworks.data.pack import pack

class Stuck(FakeTokenizer):
    def encode_batch_to_numpy(self, texts, **options):
        print("encoding", flush=True)
        open({gate!r}).close()
        return super().encode_batch_to_numpy(texts, **options)

if __name__ == "__main__":
    # A test run in the background of a shell hands SIGINT on as ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    {body}
"""


def child(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "child.py"
    here, gate = str(Path(__file__).parent), str(tmp_path / "gate")
    body = textwrap.indent(body, "    ").strip()
    script.write_text(CHILD.format(here=here, gate=gate, body=body))
    return [sys.executable, str(script)]


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["x" * 200_000])
    body = f"""resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    pack([{str(source)!r}], {str(tmp_path / "o")!r}, FakeTokenizer())
except Exception as error:
    print(type(error).__name__, error)"""
    done = subprocess.run(child(tmp_path, body), capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{StorageError.__name__} could not write {tmp_path}")
    assert "the disk is full" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "child.py"]


@pytest.mark.parametrize("killer", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_killed_pack_leaves_no_output_and_the_next_one_cleans_up(
    tmp_path: Path, tokenizer: Any, killer: signal.Signals, threads: int
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", MANY)
    body = f"pack([{str(source)!r}], {str(tmp_path / 'o')!r}, Stuck(), num_threads={threads})"
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = subprocess.Popen(
        child(tmp_path, body), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    with process.stdout, contextlib.ExitStack() as stack:
        assert process.stdout.readline() == b"encoding\n"
        stack.callback(process.kill)
        process.send_signal(killer)
        if killer == signal.SIGINT:
            # A thread finishes its batch before Ctrl-C ends the program: let it pass the gate.
            stack.callback(os.close, os.open(gate, os.O_RDWR))
        process.communicate(timeout=60)
    assert process.returncode == -killer
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".o.part-")]
    assert not (tmp_path / "o").exists()
    assert len(left) == (1 if killer == signal.SIGKILL else 0)
    pack([source], tmp_path / "o", tokenizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "child.py", "gate", "o"]


def test_what_another_process_writes_or_a_user_named_is_left_alone(
    tmp_path: Path, tokenizer: Any
) -> None:
    import fcntl

    source = write_jsonl(tmp_path / "a.jsonl", MANY)
    other = tmp_path / ".o.part-0123abcd"
    other.mkdir()
    mine = tmp_path / ".o.part-time"
    mine.mkdir()
    lock = os.open(other, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pack([source], tmp_path / "o", tokenizer)
    finally:
        os.close(lock)
    assert other.is_dir()
    assert mine.is_dir()
