"""Task files: what is read, and what a wrong line is told."""

from pathlib import Path

import pytest

from lmworks.base.errors import DataError
from lmworks.eval.task_file import ChoiceItem, GenerationItem, read_task

CHOICE = '{"context": "a", "choices": ["b", "c"], "label": 1}'


def write(folder: Path, *lines: str) -> Path:
    file = folder / "task.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_questions_are_numbered_by_their_lines(tmp_path: Path) -> None:
    file = write(tmp_path, "", CHOICE, "  ", '{"prompt": "p", "answer": "x"}', "")
    items = read_task(file)
    assert list(items) == [2, 4]
    assert items[2] == ChoiceItem(context="a", choices=["b", "c"], label=1)
    assert items[4] == GenerationItem(prompt="p", answer="x")


def test_defaults_go_to_the_lines_after_them_that_say_nothing_else(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        CHOICE,
        '{"defaults": {"examples": "E ", "stop": ["\\n"]}}',
        CHOICE,
        '{"prompt": "p", "answer": "x", "examples": ""}',
        '{"defaults": {}}',
        CHOICE,
    )
    items = list(read_task(file).values())
    assert [item.examples for item in items] == ["", "E ", "", ""]
    assert isinstance(items[2], GenerationItem)
    assert items[2].stop == ["\n"]


def test_the_limit_counts_questions_and_reads_no_further(tmp_path: Path) -> None:
    file = write(tmp_path, '{"defaults": {}}', CHOICE, CHOICE, "broken")
    assert list(read_task(file, limit=2)) == [2, 3]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: .* at character 2"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "must be a JSON object, not list"),
        ('{"context": "a", "context": "b"}', "key 'context' is there twice"),
        (CHOICE.replace("label", "lable"), "no such key 'lable'; did you mean 'label'?"),
        ('{"defaults": {"stopp": []}}', "no such key 'stopp'; did you mean 'stop'?"),
        ('{"defaults": {}, "id": 1}', '"defaults" stands alone'),
        ('{"context": "a"}', "must have context, choices and label .* it has context"),
        ('{"context": "a", "choices": ["b", "c"]}', "label must be set"),
        (CHOICE.replace("1}", "2}"), "label=2: there are 2 choices, so it must be 0 to 1"),
        (CHOICE.replace("1}", "true}"), "label=True: .*valid integer"),
        (CHOICE.replace("1}", '"b"}'), "label='b': .*valid integer"),
        (CHOICE.replace('["b", "c"]', '["b"]'), "choices=.*at least 2 items"),
        (CHOICE.replace('"b"', '""'), "choices.0='': .*at least 1 character"),
        (CHOICE.replace('"b"', '" b"'), 'begins with a blank .*"delimiter": ""'),
        (CHOICE.replace('"a"', '"a "'), 'context ends with a blank .*"delimiter": ""'),
        (CHOICE.replace("}", ', "stop": ["x"]}'), "'stop' does not go with choices"),
        ('{"prompt": "p", "answer": "x", "label": 0}', "'label' does not go with prompt"),
        ('{"prompt": "p"}', "answer must be set"),
        ('{"prompt": "p", "answer": []}', "answer=.*at least 1 item"),
        ('{"prompt": "p", "answer": 5}', "answer=5: .*list"),
        ('{"prompt": "p", "answer": "x", "normalize": ["cases"]}', "normalize.0='cases': .*'case'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = write(tmp_path, CHOICE, line)
    with pytest.raises(DataError, match=rf"task\.jsonl:2: .*{message}"):
        read_task(file)


def test_bytes_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    file = tmp_path / "task.jsonl"
    file.write_bytes(b'{"context": "\xe9"}')
    with pytest.raises(DataError, match=r"task\.jsonl:1: not UTF-8 at byte 13"):
        read_task(file)


@pytest.mark.parametrize("content", ["", "\n\n", '{"defaults": {}}'])
def test_a_file_without_questions_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match="has no question"):
        read_task(write(tmp_path, content))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_task(tmp_path / "none.jsonl")
