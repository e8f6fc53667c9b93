"""BPE training beside its peers: CPU seconds, wall seconds, peak memory, merges.

    python benchmarks/tokenizer/train.py CORPUS --vocab-size 10000 32000
    pip install rustbpe gigabpe gigatoken      # more peers, if wanted

Each run is a child process of its own; contenders take turns, so that a noisy neighbour hits all.
Times exclude imports. Peers: Hugging Face tokenizers (train_from_iterator over documents split at
<|endoftext|>, GPT-2 pattern), rustbpe, gigabpe, gigatoken; those that are not installed are left
out. Ours runs twice: with its own rule for ties, compared with the Python reference on a slice, and
with Hugging Face's; then the run stops unless all merges equal those of tokenizers, where it ran.
"""

import argparse
import hashlib
import importlib.util
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lmworks.bench.harness import Row, Spread, print_rows, run_child, save_result

EOT = "<|endoftext|>"
CHUNK_BYTES = 1 << 22
SLOW = ("tokenizers", "rustbpe")


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

Merges = list[tuple[bytes, bytes]]
Trained = tuple[int, Merges | None]
"""Size of the vocabulary and, where they are compared, its merges."""
Run = Callable[[], Trained]

HUGGING_FACE_MERGES = ("lmworks_hf", "tokenizers", "gigatoken")
"""Contenders whose merges are to be equal."""


def lmworks(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    import numpy  # noqa: F401 - imported on use: not part of the time, as the peers' imports

    from lmworks.tokenizer import train_bpe

    return lambda: (train_bpe([corpus], vocab_size, num_threads=num_threads).vocab_size, None)


def lmworks_hf(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    import numpy  # noqa: F401 - as above

    from lmworks.tokenizer import train_bpe

    def run() -> Trained:
        tokenizer = train_bpe([corpus], vocab_size, num_threads=num_threads, mode="huggingface")
        return tokenizer.vocab_size, tokenizer.merged_bytes

    return run


def tokenizers(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    def run() -> Trained:
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
        return int(tokenizer.get_vocab_size()), merges_of(tokenizer.to_str())

    return run


def merges_of(tokenizer_json: str) -> Merges:
    """Merges of a tokenizer.json as bytes."""
    from lmworks.tokenizer.train_reference import HUGGINGFACE_BYTES

    num_printable = 188  # these stand for themselves; the others are written as U+0100 and up
    byte_of = {
        chr(b if i < num_printable else 256 + i - num_printable): b
        for i, b in enumerate(HUGGINGFACE_BYTES)
    }
    return [
        (bytes(byte_of[c] for c in left), bytes(byte_of[c] for c in right))
        for left, right in json.loads(tokenizer_json)["model"]["merges"]
    ]


def rustbpe(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    import rustbpe as peer

    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

    def run() -> Trained:
        tokenizer = peer.Tokenizer()
        tokenizer.train_from_iterator(documents(corpus), vocab_size - 1, pattern=gpt2)
        return int(tokenizer.vocab_size) + 1, None  # it has no special tokens

    return run


def gigabpe(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    import gigabpe as peer

    def run() -> Trained:
        vocab, _ = peer.train_bpe(
            [str(corpus)],
            vocab_size,
            special_tokens=[EOT],
            pretokenizer="bytelevel",
            threads=num_threads,
        )
        return len(vocab), None

    return run


def gigatoken(corpus: Path, vocab_size: int, num_threads: int) -> Run:
    import gigatoken as peer

    def run() -> Trained:
        vocab, merges = peer.train_bpe(str(corpus), vocab_size, [EOT], separator=EOT.encode())
        return len(vocab), merges

    return run


CONTENDERS = {f.__name__: f for f in (lmworks, lmworks_hf, tokenizers, rustbpe, gigabpe, gigatoken)}


def child(name: str, corpus: Path, vocab_size: int, num_threads: int) -> None:
    """Train once and print a JSON line."""
    run = CONTENDERS[name](corpus, vocab_size, num_threads)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    reached, merges = run()
    row = {
        "cpu_s": time.process_time() - cpu_s,
        "wall_s": time.perf_counter() - wall_s,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "vocab_size": reached,
        "merges": merges and hashlib.sha256(repr(merges).encode()).hexdigest(),
    }
    print(json.dumps(row))


# ---- the parent ----


def run_contender(name: str, args: argparse.Namespace, vocab_size: int) -> dict[str, Any]:
    """Train once in a process of its own."""
    env = {
        "RAYON_NUM_THREADS": str(args.num_threads),
        "TOKENIZERS_PARALLELISM": "true" if args.num_threads > 1 else "false",
    }
    command = [sys.executable, __file__, str(args.corpus), "--child", name]
    command += ["--vocab-size", str(vocab_size), "--num-threads", str(args.num_threads)]
    row: dict[str, Any] = json.loads(run_child(command, env=env).stdout.splitlines()[-1])
    print(f"  {name:<11} {row['cpu_s']:7.2f} CPU s  {row['wall_s']:7.2f} s", flush=True)
    return row


def measure(args: argparse.Namespace, vocab_size: int) -> list[Row]:
    """CPU seconds, wall seconds and peak memory of every contender that is installed."""
    runs: dict[str, list[dict[str, Any]]] = {
        name: [] for name in args.contenders if importlib.util.find_spec(name.removesuffix("_hf"))
    }
    for repeat in range(args.repeats):
        for name, done in runs.items():
            if name not in SLOW or repeat < args.slow_repeats:
                done.append(run_contender(name, args, vocab_size))
    check_equal_merges(runs)
    return [
        Row(f"vocab {vocab_size}", name, metric, Spread.of([row[metric] for row in done]))
        for name, done in runs.items()
        for metric in ("cpu_s", "wall_s", "peak_rss_mb")
    ]


def check_equal_merges(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Stop unless all contenders that follow Hugging Face made the same merges."""
    names = [name for name in HUGGING_FACE_MERGES if runs.get(name)]
    merges = {row["merges"] for name in names for row in runs[name]}
    if len(merges) > 1:
        raise SystemExit(f"the merges of {', '.join(names)} differ")
    if len(names) > 1:
        print(f"the merges of {', '.join(names)} are equal")


def check_slice(corpus: Path, slice_bytes: int, vocab_size: int) -> None:
    """Stop unless native merges equal the Python reference's on the start of the corpus."""
    from lmworks import _text
    from lmworks.tokenizer.train_reference import train_bpe_reference

    with corpus.open("rb") as file:
        text = file.read(slice_bytes).decode("utf-8", "ignore").encode()
    max_merges = vocab_size - 257
    trainer = _text.BpeTrainer("gpt2", [EOT.encode()], 2)
    trainer.count_texts([text])
    merges = trainer.train(max_merges, None)
    if merges != train_bpe_reference([text], max_merges, special_tokens=[EOT]):
        raise SystemExit(f"merges on {len(text)} bytes differ from the Python reference")
    print(f"{len(merges)} merges on {len(text)} bytes equal the Python reference")


def main() -> None:
    """Run all contenders and write benchmarks/results/tokenizer_train.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--vocab-size", type=int, nargs="+", default=[10_000, 32_000])
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slow-repeats", type=int, default=1, help="of the slow peers")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--slice-bytes", type=int, default=2_000_000)
    parser.add_argument("--child", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.corpus, args.vocab_size[0], args.num_threads)
        return
    check_slice(args.corpus, args.slice_bytes, 2000)
    rows = []
    for vocab_size in args.vocab_size:
        print(f"vocabulary {vocab_size}")
        rows += measure(args, vocab_size)
    print_rows(rows)
    megabytes = args.corpus.stat().st_size / 1e6
    save_result(
        "tokenizer_train",
        title=f"BPE training, {megabytes:.0f} MB, {args.num_threads} threads",
        command="python benchmarks/tokenizer/train.py CORPUS",
        rows=rows,
        packages=["lmworks", "tokenizers", "rustbpe", "gigabpe", "gigatoken"],
    )


if __name__ == "__main__":
    main()
