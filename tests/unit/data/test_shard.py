"""Shards give back what was written; what is damaged is refused with expected and actual."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmworks.base.errors import DataError
from lmworks.data.shard import ShardSet, ShardWriter, open_shards

MakeShards = Callable[..., ShardSet]
DOCUMENTS = [[1, 2, 3], [4], [5, 6, 7, 8, 5, 6], [1]]
STREAM = [1, 2, 3, 9, 4, 9, 5, 6, 7, 8, 5, 6, 9, 1, 9]


@pytest.mark.parametrize("max_shard_tokens", [1, 5, 6, 1000])
def test_shards_read_as_one_stream(make_shards: MakeShards, max_shard_tokens: int) -> None:
    shards = make_shards(DOCUMENTS, max_shard_tokens=max_shard_tokens)
    for start in range(len(STREAM)):
        for stop in range(start, len(STREAM) + 1):
            assert shards.read(start, stop).tolist() == STREAM[start:stop]
    assert shards.document_starts().tolist() == [0, 4, 6, 13]


def test_a_shard_ends_before_the_document_that_would_pass_the_limit(
    make_shards: MakeShards,
) -> None:
    shards = make_shards(DOCUMENTS, max_shard_tokens=6)
    assert [s.num_tokens for s in shards.manifest.shards] == [6, 7, 2]
    assert [s.num_documents for s in shards.manifest.shards] == [2, 1, 1]


def test_documents_appended_together_or_one_by_one_give_equal_shards(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    one_by_one = make_shards(DOCUMENTS, max_shard_tokens=6)
    with ShardWriter(tmp_path / "b", vocab_size=10, eot_id=9, max_shard_tokens=6) as writer:
        lengths = np.array([len(d) + 1 for d in DOCUMENTS])
        writer.append(np.array(STREAM, np.uint32), lengths, text_bytes=11)
        together = writer.finish(
            tokenizer_kind="fake", tokenizer_fingerprint="f" * 64, sources=("a.txt",)
        )
    assert together == one_by_one.manifest


@pytest.mark.parametrize(
    ("vocab_size", "dtype", "itemsize"), [(65_536, "uint16", 2), (65_537, "uint32", 4)]
)
def test_the_smallest_type_that_fits_is_used(
    make_shards: MakeShards, vocab_size: int, dtype: str, itemsize: int
) -> None:
    top = vocab_size - 1
    shards = make_shards([[top, 0]], eot_id=top, vocab_size=vocab_size)
    assert shards.manifest.dtype == dtype
    assert shards.manifest.shards[0].tokens_bytes == 3 * itemsize
    assert shards.read(0, 3).tolist() == [top, 0, top]


def test_an_id_outside_the_vocabulary_is_refused(make_shards: MakeShards) -> None:
    with pytest.raises(DataError, match="token id 10 is not below the tokenizer's vocab_size=10"):
        make_shards([[10]])


def test_bytes_per_token_leaves_out_end_of_text_tokens(make_shards: MakeShards) -> None:
    assert make_shards(DOCUMENTS).manifest.bytes_per_token == 1.0


def test_the_same_content_has_the_same_fingerprint_and_other_content_another(
    make_shards: MakeShards,
) -> None:
    first = make_shards(DOCUMENTS, name="a")
    assert make_shards(DOCUMENTS, name="b").fingerprint == first.fingerprint
    assert make_shards(DOCUMENTS[1:], name="c").fingerprint != first.fingerprint


@pytest.mark.parametrize(("change", "state"), [(-2, "truncated"), (2, "too long")])
@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_a_file_of_another_size_is_refused(
    make_shards: MakeShards, change: int, state: str, suffix: str
) -> None:
    file = make_shards(DOCUMENTS).path / f"shard-00000.{suffix}"
    size = file.stat().st_size
    with file.open("r+b") as handle:
        handle.truncate(size + change)
    with pytest.raises(DataError, match=f"{suffix}: {state}: {size + change} bytes.* {size};"):
        open_shards(file.parent)


def test_a_missing_shard_is_named(make_shards: MakeShards) -> None:
    shards = make_shards(DOCUMENTS)
    (shards.path / "shard-00000.bin").unlink()
    with pytest.raises(DataError, match=r"shard-00000\.bin: missing"):
        open_shards(shards.path)


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_a_flipped_byte_is_found_by_verify(make_shards: MakeShards, suffix: str) -> None:
    file = make_shards(DOCUMENTS).path / f"shard-00000.{suffix}"
    data = bytearray(file.read_bytes())
    data[4] ^= 1
    file.write_bytes(data)
    open_shards(file.parent)
    with pytest.raises(DataError, match=rf"shard-00000\.{suffix}: its content has changed"):
        open_shards(file.parent, verify=True)


def test_verify_accepts_intact_shards(make_shards: MakeShards) -> None:
    open_shards(make_shards(DOCUMENTS, max_shard_tokens=2).path, verify=True)


def test_another_tokenizer_is_refused_and_the_right_one_accepted(make_shards: MakeShards) -> None:
    path = make_shards(DOCUMENTS).path
    open_shards(path, tokenizer_fingerprint="f" * 64)
    message = "another tokenizer: its fingerprint is f{16}….*yours is e{16}….*pack the text again"
    with pytest.raises(DataError, match=message):
        open_shards(path, tokenizer_fingerprint="e" * 64)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such directory of token shards"):
        open_shards(tmp_path / "nowhere")


def test_the_parent_of_a_split_points_at_its_parts(make_shards: MakeShards, tmp_path: Path) -> None:
    make_shards(DOCUMENTS, name="out/train")
    with pytest.raises(DataError, match=r"did you mean .*out/train\?"):
        open_shards(tmp_path / "out")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"num_tokens": 14}, "counts contradict each other"),
        ({"max_token_id": 10}, "counts contradict each other"),
        ({"text_bytes": -1}, "text_bytes: input should be greater"),
        ({"shards": []}, "counts contradict each other"),
        ({"version": 2}, r"format and version are \('lmworks.tokens', 2\)"),
        ({"dtype": "int8"}, "dtype: input should be"),
        ({"colour": "red"}, "colour: extra inputs"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(
    make_shards: MakeShards, edit: dict[str, Any], message: str
) -> None:
    path = make_shards(DOCUMENTS).path
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **edit}))
    with pytest.raises(DataError, match=f"(?i){message}"):
        open_shards(path)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_damaged_manifest_is_refused(make_shards: MakeShards, content: bytes) -> None:
    path = make_shards(DOCUMENTS).path
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(DataError, match=r"manifest\.json: "):
        open_shards(path)


def test_a_shard_name_cannot_leave_the_folder(make_shards: MakeShards) -> None:
    path = make_shards(DOCUMENTS).path
    file = path / "manifest.json"
    file.write_text(file.read_text().replace("shard-00000", "../shard-00000"))
    with pytest.raises(DataError, match=r"shards\.0\.name"):
        open_shards(path)
