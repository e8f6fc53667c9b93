"""The Python on the pages about tokenizers runs, from the first block to the last."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "num_blocks", "result"),
    [("tokenizer.md", 6, ("text", "naïve 🙂")), ("tokenizer-training.md", 1, ("faults", []))],
)
def test_the_python_of_a_page_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
    num_blocks: int,
    result: tuple[str, object],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("Hello world, said the naïve fox. 🙂\n" * 50, encoding="utf-8")
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    assert len(blocks) >= num_blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert names[result[0]] == result[1]
