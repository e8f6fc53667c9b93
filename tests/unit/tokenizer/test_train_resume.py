"""A count that was killed goes on where it was and ends in the same tokenizer."""

import gzip
import json
import os
import random
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from lmworks.base.errors import ConfigError, DataError, StorageError
from lmworks.tokenizer import corpus, count_state, load
from lmworks.tokenizer.count_state import STATE_NAME
from lmworks.tokenizer.train import train_bpe

VOCAB_SIZE = 600
SAVE_ALWAYS = 1e-9


def text(seed: int, num_lines: int) -> str:
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(999)]
    lines = (" ".join(rng.choices(words, k=9)) for _ in range(num_lines))
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file of each way of reading."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text(text(1, 200))
    (folder / "b.txt.gz").write_bytes(gzip.compress(text(2, 500).encode()))
    lines = "".join(json.dumps({"text": line}) + "\n" for line in text(3, 300).splitlines())
    (folder / "c.jsonl").write_text(lines)
    (folder / "d.txt").write_text(text(4, 900))
    if find_spec("pyarrow"):
        import pyarrow.parquet

        table = pyarrow.table({"text": text(5, 300).splitlines()})
        pyarrow.parquet.write_table(table, folder / "e.parquet", row_group_size=90)
    return folder


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "READ_BYTES", 4096)
    monkeypatch.setattr(corpus, "_CUT_REACH_BYTES", 1024)
    monkeypatch.setattr(corpus, "BATCH_BYTES", 8192)
    monkeypatch.setattr(corpus, "RESUMABLE_BYTES", 20_000)
    monkeypatch.setattr(corpus, "_REPORT_EVERY_S", 0)
    monkeypatch.setattr(count_state, "MAX_SAVE_RATIO", 0)


class Stop(Exception):
    pass


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_stopped_anywhere_it_ends_in_the_same_tokenizer(folder: Path, tmp_path: Path) -> None:
    want = train_bpe(folder, VOCAB_SIZE)
    state = tmp_path / "state"
    num_stops = calls_left = 0

    def stop(phase: str, done: int, total: int) -> None:
        nonlocal calls_left
        calls_left -= 1
        if phase == "count" and calls_left < 0:
            raise Stop

    while num_stops < 200:
        calls_left = 15 * num_stops
        try:
            got = train_bpe(
                folder, VOCAB_SIZE, resume_dir=state, save_every_s=SAVE_ALWAYS, progress=stop
            )
            break
        except Stop:
            num_stops += 1
    assert num_stops > 3
    assert got == want


def test_a_finished_count_serves_other_sizes_without_reading(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    train_bpe(folder, 400, resume_dir=state)
    sizes = {file: file.stat() for file in folder.iterdir()}
    for file, info in sizes.items():
        file.write_bytes(b"\0" * info.st_size)
        os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    got = train_bpe(folder, VOCAB_SIZE, resume_dir=state)
    assert got.vocab_size == VOCAB_SIZE
    assert sorted(path.name for path in state.iterdir()) == ["counts-1", "lock", STATE_NAME]


@pytest.mark.usefixtures("small_chunks")
def test_bad_lines_before_a_stop_are_told_after_it(tmp_path: Path) -> None:
    file, state = tmp_path / "a.jsonl", tmp_path / "state"
    lines = [json.dumps({"text": line}) for line in text(3, 900).splitlines()]
    lines[1] = lines[-1] = "{broken"
    file.write_text("\n".join(lines))

    def stop(phase: str, done: int, total: int) -> None:
        raise Stop

    faults: list[DataError] = []
    with pytest.raises(Stop):
        train_bpe(
            file,
            400,
            resume_dir=state,
            save_every_s=SAVE_ALWAYS,
            on_fault=faults.append,
            progress=stop,
        )
    assert faults == []
    train_bpe(file, 400, resume_dir=state, on_fault=faults.append)
    (fault,) = faults
    assert "a.jsonl:2: not valid JSON" in str(fault)
    assert "this and 1 more bad lines are left out, 898 lines are used" in str(fault)


@pytest.mark.usefixtures("small_chunks")
def test_a_compressed_file_goes_on_inside(tmp_path: Path) -> None:
    file, state = tmp_path / "a.txt.gz", tmp_path / "state"
    file.write_bytes(gzip.compress(text(2, 1000).encode()))
    num_calls = 0

    def stop(phase: str, done: int, total: int) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls > 3:
            raise Stop

    with pytest.raises(Stop):
        train_bpe(file, 500, resume_dir=state, save_every_s=SAVE_ALWAYS, progress=stop)
    offset = json.loads((state / STATE_NAME).read_text())["position"]["offset"]
    assert offset % corpus.READ_BYTES > 0
    assert train_bpe(file, 500, resume_dir=state) == train_bpe(file, 500)


def test_a_finished_count_tells_its_faults_again(folder: Path, tmp_path: Path) -> None:
    (folder / "bad.txt").write_bytes(b"\xff")
    state = tmp_path / "state"
    for _ in range(2):
        faults: list[DataError] = []
        train_bpe(folder, 400, resume_dir=state, on_fault=faults.append)
        assert len(faults) == 1
        assert "bad.txt is not UTF-8" in str(faults[0])


def test_other_inputs_are_refused(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    train_bpe(folder, 400, resume_dir=state)
    (folder / "e.txt").write_text("more")
    with pytest.raises(DataError, match=r"e\.txt was not among the inputs; use the same, or"):
        train_bpe(folder, 400, resume_dir=state)
    (folder / "e.txt").unlink()
    train_bpe(folder, 400, resume_dir=state)
    (folder / "a.txt").write_text("other")
    with pytest.raises(DataError, match=r"a\.txt has changed"):
        train_bpe(folder, 400, resume_dir=state)
    (folder / "a.txt").unlink()
    with pytest.raises(DataError, match=r"a\.txt is not among the inputs any more"):
        train_bpe(folder, 400, resume_dir=state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": "cl100k"}, "pattern was 'gpt2' and is 'cl100k' now"),
        ({"special_tokens": ["<s>"]}, "special and protected tokens was"),
        ({"text_field": "body"}, "text_field was 'text' and is 'body' now"),
        ({"allow_invalid_utf8": True}, "allow_invalid_utf8 was False"),
    ],
)
def test_other_settings_are_refused(
    folder: Path, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    state = tmp_path / "state"
    train_bpe(folder, 400, resume_dir=state)
    with pytest.raises(ConfigError, match=message):
        train_bpe(folder, 400, resume_dir=state, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: (state / STATE_NAME).write_text("{"),
        lambda state: (state / STATE_NAME).write_text('{"format": "x"}'),
        lambda state: (state / STATE_NAME).write_text("[]"),
        lambda state: (state / "counts-1").unlink(),
        lambda state: (state / "counts-1").write_bytes(b"garbage"),
        lambda state: (state / "counts-1").write_bytes((state / "counts-1").read_bytes()[:-9]),
    ],
)
def test_a_damaged_state_is_a_data_error(folder: Path, tmp_path: Path, damage: object) -> None:
    state = tmp_path / "state"
    train_bpe(folder, 400, resume_dir=state)
    assert callable(damage)
    damage(state)
    with pytest.raises(DataError, match=r"no counts to go on with .*delete the folder"):
        train_bpe(folder, 400, resume_dir=state)


def test_what_can_be_read_once_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="standard input: what can be read only once"):
        train_bpe("-", 400, resume_dir=tmp_path / "state")


def test_a_folder_that_cannot_be_written_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not write to"):
        train_bpe(folder, 400, resume_dir=tmp_path / "file" / "state")


def test_two_processes_do_not_share_a_folder(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"

    def train_again(phase: str, done: int, total: int) -> None:
        with pytest.raises(ConfigError, match="another process is counting there"):
            train_bpe(folder, 400, resume_dir=state)

    train_bpe(folder / "a.txt", 400, resume_dir=state, progress=train_again)


PROGRAM = """
import sys
from lmworks.tokenizer import corpus, count_state, train_bpe
count_state.MAX_SAVE_RATIO = 0
corpus.READ_BYTES, corpus._CUT_REACH_BYTES, corpus.BATCH_BYTES = 4096, 1024, 8192
corpus.RESUMABLE_BYTES = 20_000
folder, state, out = sys.argv[1:]
print("ready", flush=True)
train_bpe(folder, 600, resume_dir=state, save_every_s=1e-9).save(out)
"""


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_in_the_same_tokenizer(
    folder: Path, tmp_path: Path
) -> None:
    want = train_bpe(folder, VOCAB_SIZE)
    out, state = tmp_path / "t.json", tmp_path / "state"
    rng = random.Random(0)
    argv = [sys.executable, "-c", PROGRAM, str(folder), str(state), str(out)]
    positions = []
    while not out.exists():
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            # Not before it got further, so that it ends on a slow machine, too.
            before = _content(state / STATE_NAME)
            while process.poll() is None and _content(state / STATE_NAME) == before:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.01))
            process.kill()
        if (state / STATE_NAME).exists():
            positions.append(json.loads((state / STATE_NAME).read_text())["position"])
    assert load(out) == want
    assert len({str(position) for position in positions}) > 3
    assert not list(state.glob(".*.part-*"))
