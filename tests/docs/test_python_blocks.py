"""The Python on the page about tokenizers runs, from the first block to the last."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tokenizer.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_python_of_the_tokenizer_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("Hello world, said the naïve fox. 🙂\n" * 50, encoding="utf-8")
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert names["text"] == "naïve 🙂"
