"""Makes the tables of README.md and docs/benchmarks.md from benchmarks/results/*.json.

    python -m lmworks.bench.report

A page says where a table goes with a pair of comments, `<!-- results: NAME -->` and
`<!-- /results -->`: NAME is a result file, or `headline` for the table of the README; with
`<!-- results: NAME wide -->` the contenders stand side by side. Nothing between the two is typed
by hand.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from lmworks.base.errors import DataError
from lmworks.base.storage import write_text
from lmworks.bench.harness import RESULTS

PAGES = (Path("README.md"), Path("docs/benchmarks.md"), Path("docs/moe.md"))

_MARK = re.compile(r"(<!-- results: (\w+)( wide)? -->\n).*?(<!-- /results -->)", re.DOTALL)

HEADLINES = (
    # what, result file, case, metric, ours, peer, whether more is better
    ("BPE training, 200 MB, vocabulary 32,000", "tokenizer_train", "vocab 32000", "cpu_s",
     "lmworks", "tokenizers"),
    ("encoding, cl100k vocabulary, first pass of 60 MB", "tokenizer_encode",
     "cl100k: 60 MB, first pass", "mb_per_cpu_s", "lmworks", "gigatoken"),
    ("the same, many languages", "tokenizer_encode", "cl100k: multilingual 6 MB, first pass",
     "mb_per_cpu_s", "lmworks", "fastokens"),
    ("encoding, cl100k vocabulary, warm", "tokenizer_encode", "cl100k: 6 MB, warm",
     "mb_per_cpu_s", "lmworks", "gigatoken"),
    ("the same to lists", "tokenizer_encode", "cl100k: 6 MB, lists, warm", "mb_per_cpu_s",
     "lmworks", "gigatoken"),
    ("encoding beside tiktoken", "tokenizer_encode", "cl100k: 6 MB, first pass",
     "mb_per_cpu_s", "lmworks", "tiktoken"),
    ("training step, 22.7 M parameters, bf16", "training_step", "training step", "tokens_per_s",
     "lmworks, compiled", "transformers, tuned"),
    ("the same before anything is compiled", "training_step", "training step", "tokens_per_s",
     "lmworks, uncompiled", "transformers, eager"),
    ("from command to first step, nothing cached", "training_step", "first step, nothing cached",
     "s", "lmworks", "transformers, tuned"),
)  # fmt: skip
_LESS_IS_BETTER = {"cpu_s", "s", "peak_rss_mb", "ms"}


def load_result(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """A result file; raises DataError if it is missing or no result."""
    path = folder / f"{name}.json"
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataError(f"{path}: no readable result ({err}); run its benchmark first") from None
    return result


def table(result: dict[str, Any]) -> str:
    """All rows of one result, with machine, versions and command above them."""
    lines = [
        _provenance(result),
        "",
        "| what | who | figure | median | range | runs |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['case']} | {row['contender']} | {_unit(row['metric'])} | "
            f"{_number(row['median'])} | {_number(row['min'])} to {_number(row['max'])} | "
            f"{row['repeats']} |"
        )
    return "\n".join(lines) + "\n"


def wide_table(result: dict[str, Any]) -> str:
    """One line per case and figure, one column per contender; median and range.

    A row whose contender is "A beside B" goes into the last column.
    """
    rows = result["rows"]
    who = dict.fromkeys(row["contender"] for row in rows if " beside " not in row["contender"])
    cells: dict[tuple[str, str], dict[str, str]] = {}
    ratios: dict[str, str] = {}
    for row in rows:
        text = _number(row["median"])
        if row["repeats"] > 1:
            text += f" ({_number(row['min'])} to {_number(row['max'])})"
        if row["contender"] in who:
            cells.setdefault((row["case"], row["metric"]), {})[row["contender"]] = text
        else:
            ratios[row["case"]] = f"{row['contender'].partition(' beside ')[2]}: {text} times"
    has_ratios = bool(ratios)
    head = ["what", "figure", *who] + [f"{next(iter(who))} beside the best"] * has_ratios
    repeats = max(row["repeats"] for row in rows)
    spread = f" Medians of up to {repeats} runs, with their range." if repeats > 1 else ""
    lines = [_provenance(result) + spread, "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for (case, metric), values in cells.items():
        line = [case, _unit(metric), *(values.get(name, "") for name in who)]
        line += [ratios.pop(case, "")] * has_ratios
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines) + "\n"


def headline(folder: Path = RESULTS) -> str:
    """The README's table: ours beside the named peer, and by what factor it is better."""
    lines = ["| what | lmworks | peer | better by |", "|---|---|---|---|"]
    for what, file, case, metric, ours, peer in HEADLINES:
        rows = load_result(file, folder)["rows"]
        mine, other = _median(rows, case, metric, ours), _median(rows, case, metric, peer)
        ratio = other / mine if metric in _LESS_IS_BETTER else mine / other
        lines.append(
            f"| {what} | {_number(mine)} {_unit(metric)} | {peer}: {_number(other)} | "
            f"{ratio:.3g} times |"
        )
    return "\n".join(lines) + "\n"


def fill(page: str, folder: Path = RESULTS) -> str:
    """The page with every table made anew."""

    def replace(match: re.Match[str]) -> str:
        name = match[2]
        make = wide_table if match[3] else table
        body = headline(folder) if name == "headline" else make(load_result(name, folder))
        return match[1] + body + match[4]

    return _MARK.sub(replace, page)


def _provenance(result: dict[str, Any]) -> str:
    """Command, machine and versions in one line."""
    machine = result["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    return (
        f"`{result['command']}`, {machine['cpu']}, {machine['cores']} cores "
        f"({', '.join(machine['isa'])}); {versions}."
    )


def _median(rows: list[dict[str, Any]], case: str, metric: str, contender: str) -> float:
    for row in rows:
        if (row["case"], row["metric"], row["contender"]) == (case, metric, contender):
            return float(row["median"])
    raise DataError(f"no figure {metric!r} of {contender!r} for {case!r} in the results")


def _unit(metric: str) -> str:
    return {
        "cpu_s": "CPU s",
        "cpu_ms": "CPU ms",
        "wall_s": "wall s",
        "mb_per_cpu_s": "MB per CPU s",
        "tokens_per_s": "tokens/s",
        "peak_rss_mb": "MB of memory",
        "gflop_per_s": "GFLOP/s",
        "mfu": "MFU",
        "times_faster": "times faster",
        "equal_texts": "equal texts",
        "equal_ids": "equal ids",
    }.get(metric, metric)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def main() -> int:
    """Rewrite the tables of every page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        write_text(page, fill(text))
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
