"""Proof that our ids are those of tiktoken and of Hugging Face tokenizers.

    python benchmarks/tokenizer/exact.py CORPUS MULTILINGUAL RANKS_FOLDER [--only cl100k]

Arguments are those of encode.py. With OpenAI's vocabularies, parts that can be run one by one:

- corpora: every document of both files, ours beside each reference;
- strings: a million random strings, in six distributions (strings.py), the same way;
- ways: ours by every way in, beside the plain batch: 2 and 3 threads, a cache that is wiped all the
  time, one text at a time, lists, UTF-8 bytes, arrays one by one, offsets, chunks of a stream, a
  growing text; and decoding gives the text back.

Random strings hold the code points that Unicode 14 assigns: the engines' tables are of different
versions, so that they disagree about newer ones. Stops at the first difference with the shortest
string found that shows it, and exit code 1. Writes benchmarks/results/tokenizer_exact.json, where
what was not run now stays as it was.
"""

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import texts
from encode import VOCABULARIES
from encoders import Vocabulary, tiktoken_encoding, write_vocabulary
from strings import BATCH_STRINGS, DISTRIBUTIONS, random_strings

from lmworks.bench.harness import Row, Spread, replace_rows, save_result
from lmworks.tokenizer import BPETokenizer, bpe, load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARTS = ("corpora", "strings", "ways")
BATCH_BYTES = 4_000_000
WAYS_BYTES = 20_000_000
RESULT = "tokenizer_exact"


@dataclass(frozen=True)
class Batch:
    """Ids of several texts in a row, and the number of ids of each."""

    ids: "NDArray[np.uint32]"
    lengths: "NDArray[np.int64]"


Encode = Callable[[list[str]], Batch]


class Difference(Exception):
    """A text that two encoders encode differently."""

    def __init__(self, what: str, text: str, ours: list[int], theirs: list[int]) -> None:
        shown = f"text:   {text!a}\nours:   {ours}\ntheirs: {theirs}"
        super().__init__(f"{what}: ids differ\n{shown}")


# ---- encoders as functions from texts to a Batch ----


def from_lists(lists: list[Any]) -> Batch:
    """Of one id sequence per text."""
    import numpy as np

    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    parts = [np.asarray(ids, np.uint32) for ids in lists]
    return Batch(np.concatenate([np.zeros(0, np.uint32), *parts]), lengths)


def ours_in_batches(tokenizer: BPETokenizer, num_threads: int) -> Encode:
    """The plain way: a batch to flat arrays."""
    import numpy as np

    def encode(docs: list[str]) -> Batch:
        ids, offsets = tokenizer.encode_batch_to_numpy(
            docs, num_threads=num_threads, disallowed_special=()
        )
        places = offsets.astype(np.int64)
        return Batch(ids, places[1:] - places[:-1])

    return encode


def references(vocabulary: Vocabulary, num_threads: int) -> dict[str, Encode]:
    """The peers whose ids are right by definition."""
    import tokenizers

    tiktoken = tiktoken_encoding(vocabulary)
    hugging = tokenizers.Tokenizer.from_file(str(vocabulary.hf))

    def by_tiktoken(docs: list[str]) -> Batch:
        if num_threads == 1:  # without its thread pool's cost per text
            return from_lists([tiktoken.encode_ordinary(doc) for doc in docs])
        return from_lists(tiktoken.encode_ordinary_batch(docs, num_threads=num_threads))

    def by_hugging(docs: list[str]) -> Batch:
        found = hugging.encode_batch_fast(docs, add_special_tokens=False)
        return from_lists([encoding.ids for encoding in found])

    return {"tiktoken": by_tiktoken, "tokenizers": by_hugging}


# ---- comparing ----


def compare(
    what: str, docs: list[str], ours: Batch, theirs: Batch, encoders: tuple[Encode, Encode]
) -> int:
    """Number of ids if all are equal; otherwise Difference, with a short text that shows it."""
    import numpy as np

    if np.array_equal(ours.lengths, theirs.lengths) and np.array_equal(ours.ids, theirs.ids):
        return len(ours.ids)
    our_encode, their_encode = encoders

    def differ(text: str) -> bool:
        return not np.array_equal(our_encode([text]).ids, their_encode([text]).ids)

    text = next((doc for doc in docs if differ(doc)), None)
    if text is None:
        raise SystemExit(f"error: {what}: ids differ in a batch and agree text by text")
    text = shortest(text, differ)
    raise Difference(what, text, our_encode([text]).ids.tolist(), their_encode([text]).ids.tolist())


def shortest(text: str, fails: Callable[[str], bool]) -> str:
    """A part of the text that still fails and fails no more without any single character."""
    size = max(1, len(text) // 2)
    while True:
        at = 0
        while at < len(text):
            without = text[:at] + text[at + size :]
            if without and fails(without):
                text = without
            else:
                at += size
        if size == 1:
            return text
        size = max(1, size // 2)


def in_batches(docs: list[str]) -> Iterator[list[str]]:
    """Documents in groups of some megabytes."""
    batch: list[str] = []
    num_chars = 0
    for doc in docs:
        batch.append(doc)
        num_chars += len(doc)
        if num_chars > BATCH_BYTES:
            yield batch
            batch, num_chars = [], 0
    yield batch


# ---- the parts ----


@dataclass
class Count:
    """What was compared."""

    num_texts: int = 0
    num_tokens: int = 0

    def add(self, docs: list[str], num_tokens: int) -> None:
        """One more batch that agreed."""
        self.num_texts += len(docs)
        self.num_tokens += num_tokens

    def rows(self, what: str) -> Iterator[Row]:
        """Print them; as figures of the result file."""
        print(f"{what}: {self.num_texts:,} equal texts, {self.num_tokens:,} ids", flush=True)
        yield Row(what, "lmworks", "equal_texts", Spread.of([self.num_texts]))
        yield Row(what, "lmworks", "equal_ids", Spread.of([self.num_tokens]))


def beside_references(
    what: str, batches: Iterator[list[str]], tokenizer: BPETokenizer, peers: dict[str, Encode]
) -> Iterator[Row]:
    """Ours beside every reference on all batches."""
    ours = ours_in_batches(tokenizer, 1)
    counts = {name: Count() for name in peers}
    for docs in batches:
        found = ours(docs)
        for name, reference in peers.items():
            num_tokens = compare(f"{what}, {name}", docs, found, reference(docs), (ours, reference))
            counts[name].add(docs, num_tokens)
    for name, count in counts.items():
        yield from count.rows(f"{what}, beside {name}")


def corpora(vocabulary: Vocabulary, args: argparse.Namespace) -> Iterator[Row]:
    """All documents of both corpora."""
    tokenizer, peers = load_all(vocabulary, args)
    for path in (args.corpus, args.multilingual):
        docs = texts.documents(path)
        what = f"{vocabulary.name}: {path.name}"
        yield from beside_references(what, in_batches(docs), tokenizer, peers)


def strings(vocabulary: Vocabulary, args: argparse.Namespace) -> Iterator[Row]:
    """Random strings of every distribution, in equal numbers."""
    tokenizer, peers = load_all(vocabulary, args)
    sample = texts.head(args.multilingual, BATCH_BYTES)
    num_batches = -(-args.strings // (BATCH_STRINGS * len(DISTRIBUTIONS)))
    for name in DISTRIBUTIONS:
        batches = (random_strings(name, seed, sample) for seed in range(num_batches))
        what = f"{vocabulary.name}: random strings, {name}"
        yield from beside_references(what, batches, tokenizer, peers)


def ways(vocabulary: Vocabulary, args: argparse.Namespace) -> Iterator[Row]:
    """Ours by every way in, on the heads of the corpora and on random strings."""
    tokenizer, _ = load_all(vocabulary, args)
    docs = texts.head(args.corpus, WAYS_BYTES) + texts.head(args.multilingual, WAYS_BYTES)
    docs += list(texts.hostile().values())
    for name in DISTRIBUTIONS:
        docs += random_strings(name, 0, docs[:100])
    plain = ours_in_batches(tokenizer, 1)
    for way, encode in ways_in(vocabulary, tokenizer).items():
        what = f"{vocabulary.name}: {way}, beside the plain batch"
        count = Count()
        for batch in in_batches(docs):
            num_tokens = compare(what, batch, encode(batch), plain(batch), (encode, plain))
            count.add(batch, num_tokens)
        yield from count.rows(what)
    yield from check_decoding(f"{vocabulary.name}: decoded ids beside the text", tokenizer, docs)


def ways_in(vocabulary: Vocabulary, tokenizer: BPETokenizer) -> dict[str, Encode]:
    """Every other way from texts to ids."""
    any_text: dict[str, Any] = {"disallowed_special": ()}
    with mock.patch.object(bpe, "MAX_CACHE_SLOTS", 1):
        forgetful = load(vocabulary.own)
    assert isinstance(forgetful, BPETokenizer), "written by write_vocabulary"

    def growing(doc: str) -> Any:
        text = tokenizer.growing(**any_text)
        for chunk in chunks(doc):
            text.append(chunk)
        return text.ids.copy()

    one_by_one: dict[str, Callable[[str], Any]] = {
        "one text at a time": lambda doc: tokenizer.encode_to_numpy(doc, **any_text),
        "one text at a time, list": lambda doc: tokenizer.encode(doc, **any_text),
        "bytes": lambda doc: tokenizer.encode_to_numpy(doc.encode(), **any_text),
        "with offsets": lambda doc: tokenizer.encode_with_offsets(doc, **any_text).ids,
        "stream": lambda doc: list(tokenizer.encode_iterable(chunks(doc), **any_text)),
        "growing text": growing,
    }
    encoders: dict[str, Encode] = {
        "2 threads": ours_in_batches(tokenizer, 2),
        "3 threads": ours_in_batches(tokenizer, 3),
        "smallest cache": ours_in_batches(forgetful, 1),
        "lists": lambda docs: from_lists(tokenizer.encode_batch(docs, **any_text)),
        "arrays one by one": lambda docs: from_lists(list(tokenizer.encode_each(docs, **any_text))),
    }
    return encoders | {name: each(encode) for name, encode in one_by_one.items()}


def each(encode: Callable[[str], Any]) -> Encode:
    """From a way for one text to one for several."""
    return lambda docs: from_lists([encode(doc) for doc in docs])


def chunks(doc: str) -> Iterator[str]:
    """The text in chunks of 1 to 50,000 characters, short ones at first."""
    rng = random.Random(len(doc))
    at = 0
    while at < len(doc):
        size = rng.randint(1, min(50_000, 10 + at))
        yield doc[at : at + size]
        at += size


def check_decoding(what: str, tokenizer: BPETokenizer, docs: list[str]) -> Iterator[Row]:
    """Ids of each document give the document."""
    count = Count()
    ids, offsets = tokenizer.encode_batch_to_numpy(docs, disallowed_special=())
    for doc, (start, end) in zip(docs, itertools.pairwise(offsets.tolist()), strict=True):
        if tokenizer.decode(ids[start:end]) != doc:
            raise SystemExit(f"error: {what}: {doc[:200]!a} does not come back")
        count.add([doc], end - start)
    yield from count.rows(what)


# ---- the program ----


def load_all(
    vocabulary: Vocabulary, args: argparse.Namespace
) -> tuple[BPETokenizer, dict[str, Encode]]:
    """Our tokenizer and the references."""
    tokenizer = load(vocabulary.own)
    assert isinstance(tokenizer, BPETokenizer), "written by write_vocabulary"
    peers = references(vocabulary, args.threads)
    return tokenizer, {name: peers[name] for name in args.references}


def parse_arguments() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path, help="text, documents end with <|endoftext|>")
    parser.add_argument("multilingual", type=Path, help="the same in many languages")
    parser.add_argument("ranks_folder", type=Path, help="folder with *_base.tiktoken files")
    parser.add_argument("--only", nargs="+", choices=VOCABULARIES, default=VOCABULARIES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--strings", type=int, default=1_000_000, help="how many random ones")
    parser.add_argument("--threads", type=int, default=1, help="of the references")
    parser.add_argument(
        "--references",
        nargs="+",
        choices=("tiktoken", "tokenizers"),
        default=("tiktoken", "tokenizers"),
    )
    parser.add_argument("--no-save", action="store_true", help="print only")
    return parser.parse_args()


def main() -> int:
    """Run the parts, print, write benchmarks/results/tokenizer_exact.json."""
    args = parse_arguments()
    parts = {"corpora": corpora, "strings": strings, "ways": ways}
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in args.only:
                vocabulary = write_vocabulary(name, args.ranks_folder, Path(folder))
                for part in args.parts:
                    rows += parts[part](vocabulary, args)
    except Difference as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    if not args.no_save:
        save_result(
            RESULT,
            title="Ids equal to those of tiktoken and Hugging Face tokenizers",
            command="python benchmarks/tokenizer/exact.py CORPUS MULTILINGUAL RANKS_FOLDER",
            rows=replace_rows(RESULT, rows),
            packages=["lmworks", "tiktoken", "tokenizers"],
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
