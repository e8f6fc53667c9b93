"""Encoding speed beside tiktoken and Hugging Face tokenizers: same merges, same text, one thread.

    python benchmarks/tokenizer/encode.py CORPUS [--vocab-size 32000] [--repeats 3]

Trains a GPT-2-pattern vocabulary on the corpus, gives the same merges to all three, and has each
encode the corpus's documents in a child process of its own. Children take turns, so that a busy
machine slows all of them; the figure is MB of text per CPU second (user + system) of the encoding
calls, imports and vocabulary loading left out. Ids are compared by their SHA-256. Then strings of
one megabyte on which encoders used to go quadratic.

Writes benchmarks/results/tokenizer_encode.json.
"""

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmworks.bench.harness import Row, Spread, interleave, print_rows, run_child, save_result
from lmworks.tokenizer import BPETokenizer, load, save, train_bpe

PATTERN = "gpt2"
HF = "hf tokenizers"
END = "<|endoftext|>"
# Hugging Face tokenizers is slow enough that the head of the corpus tells its rate.
HF_BYTES = 6_000_000
PASSES = 2  # the first with empty caches, the second with full ones
HOSTILE_BYTES = 1_000_000
_NO_TEXT = ("Cn", "Cs")


def encoders(vocabulary: Path) -> dict[str, Any]:
    """What to measure: name -> maker of a function from documents to their ids."""
    return {
        "lmworks": lambda: _lmworks_list(vocabulary),
        "lmworks numpy": lambda: _lmworks_numpy(vocabulary),
        "tiktoken": lambda: _tiktoken(vocabulary),
        HF: lambda: _hf(vocabulary),
    }


def _lmworks_list(vocabulary: Path) -> Any:
    tokenizer = load(vocabulary)
    return lambda docs: [tokenizer.encode(doc, disallowed_special=()) for doc in docs]


def _lmworks_numpy(vocabulary: Path) -> Any:
    tokenizer = load(vocabulary)
    return lambda docs: [tokenizer.encode_to_numpy(doc, disallowed_special=()) for doc in docs]


def _tiktoken(vocabulary: Path) -> Any:
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    tokenizer = load(vocabulary)
    assert isinstance(tokenizer, BPETokenizer), "the vocabulary was trained here"
    ranks = {token: i for i, token in enumerate(tokenizer.tokens) if token is not None}
    encoding = tiktoken.Encoding(
        "ours",
        # tiktoken's own spelling of the GPT-2 pattern: equal, faster in its engine, and it does not
        # overflow that engine's stack on a megabyte of spaces.
        pat_str=r50k_pat_str,
        mergeable_ranks=ranks,
        special_tokens=tokenizer.special_tokens,
    )
    return lambda docs: [encoding.encode(doc, disallowed_special=()) for doc in docs]


def _hf(vocabulary: Path) -> Any:
    import tokenizers

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        save(load(vocabulary), file, format="hf")
        encoding = tokenizers.Tokenizer.from_file(str(file))
    return lambda docs: [e.ids for e in encoding.encode_batch(docs)]


def documents(corpus: Path, max_bytes: int) -> list[str]:
    """The corpus's documents, whole ones, up to about `max_bytes`."""
    with corpus.open("rb") as file:
        text = file.read(max_bytes).decode("utf-8", "ignore")
    return [doc for doc in text.split(END) if doc]


def hostile() -> dict[str, str]:
    """Strings of about a megabyte that are one or few pieces, or all different ones."""
    rng = random.Random(0)
    # Assigned ones: the peers' regex engines know different versions of Unicode.
    code_points = [c for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in _NO_TEXT]
    return {
        "a": "a" * HOSTILE_BYTES,
        "spaces": " " * HOSTILE_BYTES,
        "random letters": "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=HOSTILE_BYTES)),
        "random code points": "".join(map(chr, rng.choices(code_points, k=HOSTILE_BYTES // 4))),
        "Chinese": "".join(map(chr, rng.choices(range(0x4E00, 0x9FA5), k=HOSTILE_BYTES // 3))),
    }


def child(name: str, vocabulary: Path, corpus: Path, max_bytes: int) -> dict[str, Any]:
    """Encode in this process; times in CPU seconds."""
    encode = encoders(vocabulary)[name]()
    encode(["warm the imports"])
    docs = documents(corpus, max_bytes)
    size_bytes = sum(len(doc.encode()) for doc in docs)
    seconds = []
    digest, num_tokens = "", 0
    for _ in range(PASSES):
        start = time.process_time()
        ids = encode(docs)
        seconds.append(time.process_time() - start)
        if not digest:
            digest, num_tokens = _digest(ids)
        del ids
    strings = {}
    for label, text in hostile().items():
        start = time.process_time()
        ids = encode([text])
        strings[label] = {"cpu_s": time.process_time() - start, "sha256": _digest(ids)[0]}
    return {
        "bytes": size_bytes,
        "cpu_s": seconds,
        "num_tokens": num_tokens,
        "sha256": digest,
        "hostile": strings,
    }


def _digest(ids: Any) -> tuple[str, int]:
    import numpy as np

    digest = hashlib.sha256()
    num_tokens = 0
    for doc in ids:
        array = np.asarray(doc, np.uint32)
        digest.update(array.tobytes())
        num_tokens += len(array)
    return digest.hexdigest(), num_tokens


def run_encoder(name: str, vocabulary: Path, corpus: Path, max_bytes: int) -> dict[str, Any]:
    """`child` in a fresh process with one thread."""
    env = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, __file__, str(corpus), "--child", name]
    command += ["--vocabulary", str(vocabulary), "--max-bytes", str(max_bytes)]
    result: dict[str, Any] = json.loads(run_child(command, env=env).stdout)
    return result


def measure(corpus: Path, vocab_size: int, max_bytes: int, repeats: int) -> list[Row]:
    """All encoders in turn, `repeats` times; stops if any ids differ."""
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocabulary.json"
        train_bpe([corpus], vocab_size, pattern=PATTERN).save(vocabulary)

        def contender(name: str) -> Callable[[], dict[str, Any]]:
            size = min(max_bytes, HF_BYTES) if name == HF else max_bytes
            return lambda: run_encoder(name, vocabulary, corpus, size)

        runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        contenders = {name: contender(name) for name in encoders(vocabulary)}
        for name, run in interleave(contenders, rounds=repeats):
            runs[name].append(run)
        head = run_encoder("lmworks", vocabulary, corpus, min(max_bytes, HF_BYTES))
    check_ids(runs, head)
    return [row for name, done in runs.items() for row in rows_of(name, done)]


def check_ids(runs: dict[str, list[dict[str, Any]]], head: dict[str, Any]) -> None:
    """Stop unless every encoder gave the same ids; `head` is ours on what Hugging Face encoded."""
    everything = {run["sha256"] for name in runs if name != HF for run in runs[name]}
    on_head = {head["sha256"], *(run["sha256"] for run in runs[HF])}
    hostile_ids = [
        {run["hostile"][label]["sha256"] for done in runs.values() for run in done}
        for label in head["hostile"]
    ]
    if any(len(digests) != 1 for digests in (everything, on_head, *hostile_ids)):
        raise SystemExit("the encoders do not agree on the ids")
    print("all encoders gave the same ids")


def rows_of(name: str, runs: list[dict[str, Any]]) -> list[Row]:
    """MB per CPU second of each pass, CPU milliseconds of each hostile string."""
    rows = [
        Row(case, name, "mb_per_cpu_s", Spread.of([r["bytes"] / 1e6 / r["cpu_s"][i] for r in runs]))
        for i, case in enumerate(("first pass", "second pass"))
    ]
    for label in runs[0]["hostile"]:
        times_ms = [1e3 * run["hostile"][label]["cpu_s"] for run in runs]
        rows.append(Row(f"1 MB: {label}", name, "cpu_ms", Spread.of(times_ms)))
    return rows


def main() -> None:
    """Measure, print, write benchmarks/results/tokenizer_encode.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--max-bytes", type=int, default=200_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--vocabulary", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child, args.vocabulary, args.corpus, args.max_bytes)))
        return
    rows = measure(args.corpus, args.vocab_size, args.max_bytes, args.repeats)
    print_rows(rows)
    save_result(
        "tokenizer_encode",
        title=f"BPE encoding, {PATTERN} pattern, vocabulary {args.vocab_size}, one thread",
        command="python benchmarks/tokenizer/encode.py CORPUS",
        rows=rows,
        packages=["lmworks", "tiktoken", "tokenizers"],
    )


if __name__ == "__main__":
    main()
