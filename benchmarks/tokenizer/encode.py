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
import importlib.metadata
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path
from typing import Any

from lmworks.base.machine import read_machine
from lmworks.base.storage import write_json
from lmworks.tokenizer import BPETokenizer, load, save, train_bpe

RESULT = Path(__file__).parents[1] / "results" / "tokenizer_encode.json"
PATTERN = "gpt2"
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
        "hf tokenizers": lambda: _hf(vocabulary),
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


def run_child(name: str, vocabulary: Path, corpus: Path, max_bytes: int) -> dict[str, Any]:
    """`child` in a fresh process with one thread."""
    env = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, __file__, str(corpus), "--child", name]
    command += ["--vocabulary", str(vocabulary), "--max-bytes", str(max_bytes)]
    output = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def measure(corpus: Path, vocab_size: int, max_bytes: int, repeats: int) -> dict[str, Any]:
    """All encoders in turn, `repeats` times."""
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocabulary.json"
        train_bpe([corpus], vocab_size, pattern=PATTERN).save(vocabulary)
        names = list(encoders(vocabulary))
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(repeats):
            for name in names:
                size = min(max_bytes, HF_BYTES) if name == "hf tokenizers" else max_bytes
                runs[name].append(run_child(name, vocabulary, corpus, size))
        head = run_child("lmworks", vocabulary, corpus, min(max_bytes, HF_BYTES))
    same = {run["sha256"] for name in names[:3] for run in runs[name]}
    same_head = {head["sha256"], *(run["sha256"] for run in runs["hf tokenizers"])}
    same_hostile = {
        label: len({run["hostile"][label]["sha256"] for rs in runs.values() for run in rs}) == 1
        for label in hostile()
    }
    return {
        "corpus_bytes": runs["lmworks"][0]["bytes"],
        "vocab_size": vocab_size,
        "repeats": repeats,
        "ids_equal_tiktoken": len(same) == 1,
        "ids_equal_hf_on_head": len(same_head) == 1,
        "hostile_ids_equal": same_hostile,
        "encoders": {name: summary(runs[name]) for name in names},
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """MB per CPU second of each pass: median and all values; CPU ms of the hostile strings."""
    rates = [[run["bytes"] / 1e6 / run["cpu_s"][i] for run in runs] for i in range(PASSES)]
    return {
        "bytes": runs[0]["bytes"],
        "cold_mb_per_cpu_s": statistics.median(rates[0]),
        "warm_mb_per_cpu_s": statistics.median(rates[1]),
        "cold_all": rates[0],
        "warm_all": rates[1],
        "hostile_cpu_ms": {
            label: 1e3 * statistics.median(run["hostile"][label]["cpu_s"] for run in runs)
            for label in runs[0]["hostile"]
        },
    }


def report(result: dict[str, Any]) -> str:
    """The result as a table for people."""
    rows = result["encoders"]
    base = rows["tiktoken"]
    lines = [f"{'':15}{'cold':>8}{'warm':>8}  MB per CPU s   x tiktoken (cold, warm)"]
    for name, row in rows.items():
        cold, warm = row["cold_mb_per_cpu_s"], row["warm_mb_per_cpu_s"]
        ratios = cold / base["cold_mb_per_cpu_s"], warm / base["warm_mb_per_cpu_s"]
        spread = f"cold {min(row['cold_all']):.1f}..{max(row['cold_all']):.1f}"
        lines.append(f"{name:15}{cold:8.1f}{warm:8.1f}{ratios[0]:19.1f}{ratios[1]:7.1f}   {spread}")
    lines.append(f"ids equal: tiktoken {result['ids_equal_tiktoken']}")
    lines.append(f"ids equal: hf (head of corpus) {result['ids_equal_hf_on_head']}")
    lines.append("1 MB strings, CPU ms, ids equal in all three:")
    for label, is_equal in result["hostile_ids_equal"].items():
        times = [f"{name} {row['hostile_cpu_ms'][label]:.0f}" for name, row in rows.items()]
        lines.append(f"  {label:20}{', '.join(times)}  {is_equal}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
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
    machine = read_machine()
    result = {
        "what": "BPE encoding, GPT-2 pattern, one thread",
        "command": f"python benchmarks/tokenizer/encode.py CORPUS --repeats {args.repeats}",
        "machine": {"cpu": machine.cpu_model, "num_cores": machine.num_cores, "os": machine.os},
        "load_average": os.getloadavg()[0],
        "python": sys.version.split()[0],
        "versions": {
            name: importlib.metadata.version(name) for name in ("lmworks", "tiktoken", "tokenizers")
        },
        **measure(args.corpus, args.vocab_size, args.max_bytes, args.repeats),
    }
    print(report(result))
    write_json(RESULT, result)


if __name__ == "__main__":
    main()
