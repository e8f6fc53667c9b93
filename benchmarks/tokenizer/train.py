"""BPE training beside its peers: CPU seconds, wall seconds, peak memory, merges.

    python benchmarks/tokenizer/train.py CORPUS --vocab-size 10000 32000
    python benchmarks/tokenizer/train.py CORPUS --peer-python /path/to/venv/bin/python

Each run is a child process of its own; contenders take turns, so that a noisy neighbour hits all.
Times exclude imports. Peers: Hugging Face tokenizers (train_from_iterator over documents split at
<|endoftext|>, GPT-2 pattern), rustbpe, gigabpe; those that are not installed are left out. They
break ties in other ways, so their merges differ; ours are compared with the Python reference on a
slice.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

EOT = "<|endoftext|>"
CHUNK_BYTES = 1 << 22
RESULTS = Path(__file__).parents[1] / "results" / "tokenizer_train.json"


def documents(corpus: Path) -> Iterator[str]:
    """Texts between <|endoftext|>, read in constant memory."""
    rest = b""
    with corpus.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            *whole, rest = (rest + chunk).split(EOT.encode())
            for document in whole:
                yield document.decode()
    yield rest.decode()


# ---- contenders: prepare(corpus, vocab_size, num_threads) imports and returns what is timed ----

Run = Callable[[], int]


def lmworks(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    from lmworks.tokenizer import train_bpe

    return lambda: train_bpe([corpus], vocab_size, num_threads=num_threads).vocab_size


def tokenizers(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    def run() -> int:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[EOT],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        tokenizer.train_from_iterator(documents(corpus), trainer)
        return int(tokenizer.get_vocab_size())

    return run


def rustbpe(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    import rustbpe as peer

    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

    def run() -> int:
        tokenizer = peer.Tokenizer()
        tokenizer.train_from_iterator(documents(corpus), vocab_size - 1, pattern=gpt2)
        return int(tokenizer.vocab_size) + 1  # it has no special tokens

    return run


def gigabpe(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    import gigabpe as peer

    def run() -> int:
        vocab, _ = peer.train_bpe(
            [str(corpus)],
            vocab_size,
            special_tokens=[EOT],
            pretokenizer="bytelevel",
            threads=num_threads,
        )
        return len(vocab)

    return run


CONTENDERS = {f.__name__: f for f in (lmworks, tokenizers, rustbpe, gigabpe)}


def child(name: str, corpus: Path, vocab_size: int, num_threads: int) -> None:
    """Train once and print a JSON line."""
    run = CONTENDERS[name](corpus, vocab_size, num_threads)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    reached = run()
    row = {
        "cpu_s": time.process_time() - cpu_s,
        "wall_s": time.perf_counter() - wall_s,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "vocab_size": reached,
    }
    print(json.dumps(row))


# ---- the parent ----


def interpreter(name: str, peer_python: str | None) -> str | None:
    """The Python that has the contender, or None."""
    if importlib.util.find_spec(name):
        return sys.executable
    if peer_python is None:
        return None
    check = [peer_python, "-c", f"import {name}"]
    return (
        peer_python
        if subprocess.run(check, capture_output=True, check=False).returncode == 0
        else None
    )


def version(name: str, python: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def run_child(
    python: str, name: str, args: argparse.Namespace, vocab_size: int
) -> dict[str, float]:
    env = os.environ | {
        "RAYON_NUM_THREADS": str(args.num_threads),
        "TOKENIZERS_PARALLELISM": "true" if args.num_threads > 1 else "false",
    }
    command = [python, __file__, str(args.corpus), "--child", name, "--vocab-size", str(vocab_size)]
    command += ["--num-threads", str(args.num_threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"  {name:<11} {row['cpu_s']:7.2f} CPU s  {row['wall_s']:7.2f} s", flush=True)
    return row


def measure(args: argparse.Namespace, vocab_size: int) -> dict[str, Any]:
    """Rows by contender: median, smallest and largest CPU seconds, and the largest peak memory."""
    pythons = {name: interpreter(name, args.peer_python) for name in CONTENDERS}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS if pythons[name]}
    for repeat in range(args.repeats):
        for name, rows in runs.items():
            if name != "tokenizers" or repeat < args.slow_repeats:
                rows.append(run_child(pythons[name] or "", name, args, vocab_size))
    result = {}
    for name, rows in runs.items():
        cpu_s = [row["cpu_s"] for row in rows]
        result[name] = {
            "version": version(name, pythons[name] or ""),
            "runs": len(rows),
            "cpu_s": round(statistics.median(cpu_s), 3),
            "cpu_s_range": [round(min(cpu_s), 3), round(max(cpu_s), 3)],
            "wall_s": round(statistics.median(row["wall_s"] for row in rows), 3),
            "peak_rss_bytes": int(max(row["peak_rss_bytes"] for row in rows)),
            "vocab_size": int(rows[0]["vocab_size"]),
        }
    return result


def check_slice(corpus: Path, slice_bytes: int, vocab_size: int) -> dict[str, Any]:
    """Native merges against the Python reference on the start of the corpus."""
    from lmworks import _text
    from lmworks.tokenizer.train_reference import train_bpe_reference

    with corpus.open("rb") as file:
        text = file.read(slice_bytes).decode("utf-8", "ignore").encode()
    max_merges = vocab_size - 257
    trainer = _text.BpeTrainer("gpt2", [EOT.encode()], 2)
    trainer.count_texts([text])
    merges = trainer.train(max_merges, None)
    is_equal = merges == train_bpe_reference([text], max_merges, special_tokens=[EOT])
    print(f"{len(merges)} merges on {len(text)} bytes equal the Python reference: {is_equal}")
    digest = hashlib.sha256(repr(merges).encode()).hexdigest()
    return {"bytes": len(text), "merges": len(merges), "is_equal": is_equal, "sha256": digest}


def table(rows: dict[str, Any]) -> str:
    ours = rows["lmworks"]
    lines = [f"{'':<11} {'CPU s':>8} {'ratio':>6} {'peak MB':>8} {'ratio':>6}"]
    for name, row in rows.items():
        peak, ours_peak = row["peak_rss_bytes"], ours["peak_rss_bytes"]
        lines.append(
            f"{name:<11} {row['cpu_s']:8.2f} {row['cpu_s'] / ours['cpu_s']:6.1f} "
            f"{peak / 1e6:8.0f} {peak / ours_peak:6.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--vocab-size", type=int, nargs="+", default=[10_000, 32_000])
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slow-repeats", type=int, default=1, help="of Hugging Face tokenizers")
    parser.add_argument("--slice-bytes", type=int, default=2_000_000)
    parser.add_argument("--peer-python", help="interpreter of an environment with other peers")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.corpus, args.vocab_size[0], args.num_threads)
        return

    from lmworks.base.machine import read_machine
    from lmworks.base.storage import write_json

    machine = read_machine()
    report: dict[str, Any] = {
        "command": "python benchmarks/tokenizer/train.py CORPUS --vocab-size "
        + " ".join(map(str, args.vocab_size)),
        "machine": {"cpu": machine.cpu_model, "cores": machine.num_cores, "os": machine.os},
        "python": platform.python_version(),
        "lmworks": importlib.metadata.version("lmworks"),
        "corpus": {"name": args.corpus.name, "bytes": args.corpus.stat().st_size},
        "num_threads": args.num_threads,
        "slice_check": check_slice(args.corpus, args.slice_bytes, 2000),
        "vocab_size": {},
    }
    for vocab_size in args.vocab_size:
        print(f"vocabulary {vocab_size}")
        rows = measure(args, vocab_size)
        report["vocab_size"][str(vocab_size)] = rows
        print(table(rows), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, report)


if __name__ == "__main__":
    main()
