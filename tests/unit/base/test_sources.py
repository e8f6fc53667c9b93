"""Inputs become the sources they stand for, and what is wrong with them is told at once."""

import os
from importlib.util import find_spec
from pathlib import Path

import fsspec
import pytest

from lmworks.base.errors import ConfigError, DataError
from lmworks.base.sources import Source, find_sources

ROOT_READS_ALL = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")


def write(path: Path, data: bytes = b"text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def names(folder: Path, *inputs: str | Path) -> list[str]:
    sources, faults = find_sources(inputs)
    assert faults == []
    return [os.path.relpath(source.name, folder) for source in sources]


def one(item: str | Path) -> Source:
    sources, faults = find_sources([item])
    assert faults == []
    (source,) = sources
    return source


def test_a_directory_gives_its_text_files_sorted_by_path(tmp_path: Path) -> None:
    for name in ("b/a.txt", "z.jsonl", "a.txt.gz", "b/c/d.jsonl.zst", ".git/x.txt", "c.md"):
        write(tmp_path / name)
    assert names(tmp_path, tmp_path) == ["a.txt.gz", "b/a.txt", "b/c/d.jsonl.zst", "z.jsonl"]


def test_links_to_directories_are_followed_once(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.txt")
    write(tmp_path / "elsewhere" / "b.txt")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "more").symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path, tmp_path / "data") == ["data/a.txt", "data/more/b.txt"]


def test_a_link_that_leads_nowhere_or_to_itself_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path / "a.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "self.txt").symlink_to(tmp_path / "self.txt")
    sources, faults = find_sources([tmp_path])
    assert [source.name for source in sources] == [str(tmp_path / "a.txt")]
    assert [str(fault).split(": ", 1)[1] for fault in faults] == [
        "cannot be read (No such file or directory: a broken link)",
        "cannot be read (Too many levels of symbolic links: a broken link)",
    ]


def test_pipes_in_a_directory_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    assert names(tmp_path, tmp_path) == ["a.txt"]


def test_a_named_pipe_is_a_stream(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert one(tmp_path / "pipe").is_stream


def test_a_glob_gives_files_of_any_suffix(tmp_path: Path) -> None:
    for name in ("a.md", "b/c.py", "b/d.txt"):
        write(tmp_path / name)
    assert names(tmp_path, f"{tmp_path}/**/*.[mp]*") == ["a.md", "b/c.py"]
    os.mkfifo(tmp_path / "pipe.md")
    assert names(tmp_path, f"{tmp_path}/*") == ["a.md"]
    (tmp_path / "gone.md").symlink_to(tmp_path / "nowhere")
    sources, (fault,) = find_sources([f"{tmp_path}/*.md"])
    assert [source.name for source in sources] == [str(tmp_path / "a.md")]
    assert "gone.md: cannot be read" in str(fault)


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    write(tmp_path / "a[1].txt")
    write(tmp_path / "a1.txt")
    assert names(tmp_path, f"{tmp_path}/a[1].txt") == ["a[1].txt"]


@pytest.mark.parametrize(
    ("name", "form", "compression"),
    [
        ("a", "text", ""),
        ("a.py", "text", ""),
        ("A.TXT.GZ", "text", ".gz"),
        ("a.jsonl", "jsonl", ""),
        ("a.JSONL.zst", "jsonl", ".zst"),
        pytest.param(
            "a.Parquet",
            "parquet",
            "",
            marks=pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow"),
        ),
    ],
)
def test_the_suffix_tells_form_and_compression(
    tmp_path: Path, name: str, form: str, compression: str
) -> None:
    source = one(write(tmp_path / name))
    assert (source.form, source.compression) == (form, compression)
    assert source.is_plain_file == (form == "text" and not compression)


def test_the_form_can_be_told(tmp_path: Path) -> None:
    file = write(tmp_path / "a.log.gz")
    (source,) = find_sources([file], form="jsonl")[0]
    assert (source.form, source.compression) == ("jsonl", ".gz")


def test_urls_are_files_folders_and_globs() -> None:
    memory = fsspec.filesystem("memory")
    for name in ("/s/a.txt", "/s/b/c.jsonl", "/s/d.md"):
        memory.pipe(name, b"text")
    try:
        assert [s.name for s in find_sources(["memory://s"])[0]] == [
            "memory:///s/a.txt",
            "memory:///s/b/c.jsonl",
        ]
        assert [s.name for s in find_sources(["memory://s/*.[mt]*"])[0]] == [
            "memory:///s/a.txt",
            "memory:///s/d.md",
        ]
        source = one("memory://s/d.md")
        assert (source.name, source.size_bytes) == ("memory://s/d.md", 4)
        with source.open() as raw:
            assert raw.read() == b"text"
        with pytest.raises(DataError, match="memory://s/none: no such file"):
            find_sources(["memory://s/none"])
        with pytest.raises(DataError, match="stands for no text file"):
            find_sources(["memory://s/*.x"])
    finally:
        memory.rm("/s", recursive=True)


def test_a_file_url_is_the_local_file(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt")
    assert one(f"file://{file}").path == file


def test_a_file_in_an_archive_is_read_by_its_url(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/b.txt", "inside")
    source = one(f"zip://in/b.txt::file://{tmp_path}/a.zip")
    with source.open() as raw:
        assert raw.read() == b"inside"


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nope://x: .*nope"):
        find_sources(["nope://x"])


@pytest.mark.parametrize("name", ["a.feather", "a.txt.xz", "a.zip", "a.PDF"])
def test_what_is_known_not_to_be_text_is_a_fault(tmp_path: Path, name: str) -> None:
    sources, (fault,) = find_sources([write(tmp_path / name)])
    assert sources == []
    assert "is no text; " in str(fault)


@ROOT_READS_ALL
def test_a_file_without_permission_is_a_fault(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt")
    file.chmod(0)
    sources, (fault,) = find_sources([file])
    assert sources == []
    assert "Permission denied" in str(fault)


def test_what_is_named_must_exist(tmp_path: Path) -> None:
    write(tmp_path / "books.txt")
    with pytest.raises(DataError, match=r"book\.txt: no such file.*did you mean 'books\.txt'"):
        find_sources([tmp_path / "book.txt"])
    with pytest.raises(DataError, match="matches no file"):
        find_sources([f"{tmp_path}/*.md"])
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="matches no regular file"):
        find_sources([f"{tmp_path}/f*"])
    with pytest.raises(DataError, match=r"no text file in this directory; allowed: \.txt"):
        find_sources([tmp_path / "folder"])


def test_no_input_and_standard_input_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="no input given"):
        find_sources([])
    with pytest.raises(ConfigError, match="given twice"):
        find_sources(["-", "-"])


def test_a_change_is_noticed(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt")
    source = one(file)
    source.check_unchanged()
    os.utime(file, ns=(1, 1))
    with pytest.raises(DataError, match=r"a\.txt: changed while it was read: it was written to"):
        source.check_unchanged()
    write(file, b"longer text")
    with pytest.raises(DataError, match=r"it had 4 bytes and has 11 now"):
        source.check_unchanged()
    file.unlink()
    with pytest.raises(DataError, match=r"a\.txt: vanished while it was read"):
        source.check_unchanged()
