"""Tables of the pages are made from result files."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmworks.base.errors import DataError
from lmworks.bench import harness, report
from lmworks.bench.harness import Row, Spread

PAGE = "Before.\n\n<!-- results: one -->\nold\n<!-- /results -->\n\nAfter.\n"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    row = Row("train", "lmworks", "cpu_s", Spread.of([2.0, 1.0, 9.0]))
    harness.save_result("one", title="t", command="python x.py", rows=[row], packages=["numpy"])
    return tmp_path


def test_a_page_gets_the_table_of_its_result(results: Path) -> None:
    page = report.fill(PAGE, results)
    assert "| train | lmworks | CPU s | 2 | 1 to 9 | 3 |" in page
    assert "`python x.py`" in page
    assert "old" not in page
    assert page.startswith("Before.")
    assert page.endswith("After.\n")
    assert report.fill(page, results) == page


def test_a_wide_table_has_a_column_per_contender(tmp_path: Path) -> None:
    def row(case: str, who: str, metric: str, *values: float) -> dict[str, Any]:
        spread = Spread.of(values)
        return {"case": case, "contender": who, "metric": metric, **vars(spread)}

    machine = {"cpu": "C", "cores": 2, "isa": [], "versions": {}}
    rows = [
        row("one", "ours", "mb_per_cpu_s", 1, 2, 3),
        row("one", "peer", "mb_per_cpu_s", 4, 4, 4),
        row("one", "ours beside peer", "times_faster", 0.5),
        row("two", "peer", "cpu_ms", 7),
    ]
    result = {"command": "python x.py", "machine": machine, "rows": rows}
    (tmp_path / "one.json").write_text(json.dumps(result))
    page = report.fill(PAGE.replace("one -->", "one wide -->"), tmp_path)
    assert "| what | figure | ours | peer | ours beside the best |" in page
    assert "| one | MB per CPU s | 2 (1 to 3) | 4 (4 to 4) | peer: 0.5 times |" in page
    assert "| two | CPU ms |  | 7 |  |" in page
    assert report.fill(page, tmp_path) == page


def test_a_missing_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"one\.json: no readable result"):
        report.fill(PAGE, tmp_path)


def test_the_headline_says_by_what_factor_we_are_better(tmp_path: Path) -> None:
    rows: dict[str, list[dict[str, Any]]] = {}
    for _, file, case, metric, ours, peer in report.HEADLINES:
        mine, other = (2, 8) if metric in ("cpu_s", "s") else (8, 2)
        for contender, median in ((ours, mine), (peer, other)):
            row = {"case": case, "metric": metric, "contender": contender, "median": median}
            rows.setdefault(file, []).append(row)
    for file, values in rows.items():
        (tmp_path / f"{file}.json").write_text(json.dumps({"rows": values}))
    lines = report.headline(tmp_path).splitlines()[2:]
    assert len(lines) == len(report.HEADLINES)
    assert all(line.endswith("| 4 times |") for line in lines)


def test_cases_measured_anew_replace_their_rows(results: Path) -> None:
    def row(case: str, who: str, value: float) -> Row:
        return Row(case, who, "cpu_s", Spread.of([value, value + 1]))

    before = [row("a", "x", 1), row("b", "x", 2), row("b", "y", 3), row("c", "x", 4)]
    harness.save_result("one", title="t", command="c", rows=before, packages=[])
    anew = [row("b", "z", 5), row("d", "x", 6)]
    assert harness.replace_rows("one", anew) == [before[0], *anew, before[3]]
    assert harness.replace_rows("none", anew) == anew


def test_contenders_take_turns() -> None:
    calls = harness.interleave({"a": lambda: 1, "b": lambda: 2}, rounds=2)
    assert list(calls) == [("a", 1), ("b", 2)] * 2
