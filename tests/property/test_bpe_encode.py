"""The native encoder beside the definition of BPE, on vocabularies that nobody would train."""

import itertools
import random

import numpy as np
import pytest

from lmworks import _text
from lmworks.tokenizer.base import pack_tokens

# Letters; Latin, Cyrillic, Han and emoji; the bytes of such characters in any order.
ALPHABETS = [
    b"ab",
    bytes(range(97, 123)),
    "aéж中文😀ん".encode(),
    b"abc \xe4\xb8\xad\xd0\xb0\xd1",
    b"\xe4\xb8\xad\x96\x87\xe5\xa4\xd0\xb0\xb1\xd1 x",
]
Merge = tuple[int, int, int]


class Vocabulary:
    """Random merges of the bytes of an alphabet, in an order that training may not give."""

    def __init__(self, rng: random.Random) -> None:
        self.alphabet = rng.choice(ALPHABETS)
        self.tokens = [bytes([i]) for i in range(256)]
        self.id_of = {token: i for i, token in enumerate(self.tokens)}
        merges: dict[tuple[int, int], int] = {}
        parts = sorted(set(self.alphabet))
        for _ in range(rng.choice([5, 30, 200])):
            left, right = rng.choice(parts), rng.choice(parts)
            token = self.tokens[left] + self.tokens[right]
            if len(token) > 60 or (left, right) in merges:
                continue
            if token not in self.id_of:
                self.id_of[token] = len(self.tokens)
                self.tokens.append(token)
                parts.append(self.id_of[token])
            merges[left, right] = self.id_of[token]
        order = [(*pair, result) for pair, result in merges.items()]
        if rng.random() < 0.5:
            rng.shuffle(order)
        self.merges: list[Merge] = order
        has_ties = rng.random() < 0.4
        steps = [int(rng.random() < 0.6) if has_ties else 1 for _ in order]
        self.ranks = list(itertools.accumulate(steps))
        self.ignore_merges = rng.random() < 0.3
        self.pattern = rng.choice(["none", "gpt2", "o200k"])
        self._rank_of = {
            (a, b): (self.ranks[i], result) for i, (a, b, result) in enumerate(self.merges)
        }

    def encoder(self, max_cache_slots: int) -> _text.BpeEncoder:
        blob, offsets = pack_tokens(self.tokens)
        return _text.BpeEncoder(
            pattern=self.pattern,
            ignore_merges=self.ignore_merges,
            token_bytes=blob,
            token_offsets=offsets,
            merges=np.array(self.merges, np.uint32).ravel(),
            specials=_text.SpecialSplitter([], b""),
            special_ids=[],
            max_cache_slots=max_cache_slots,
            ranks=np.array(self.ranks, np.uint32),
        )

    def encode(self, text: bytes) -> list[int]:
        """The definition: the merge of lowest rank first, the leftmost of equals."""
        pieces = [text] if self.pattern == "none" else _text.split(text, self.pattern)
        return [i for piece in pieces for i in self._encode_piece(piece)]

    def _encode_piece(self, piece: bytes) -> list[int]:
        if self.ignore_merges and piece in self.id_of:
            return [self.id_of[piece]]
        ids = list(piece)
        while True:
            found = [
                (*self._rank_of[pair], at)
                for at, pair in enumerate(itertools.pairwise(ids))
                if pair in self._rank_of
            ]
            if not found:
                return ids
            _, result, at = min(found, key=lambda merge: (merge[0], merge[2]))
            ids[at : at + 2] = [result]

    def text(self, rng: random.Random) -> bytes:
        size = rng.choice([1, 5, 20, 70, 300, 600])
        if rng.random() < 0.3:
            return bytes(rng.choices(self.alphabet, k=size))
        symbols = [self.alphabet[i : i + 1] for i in range(len(self.alphabet))]
        symbols += [c.encode() for c in self.alphabet.decode("utf-8", "ignore")]
        few = rng.sample(symbols, rng.choice([1, 2, len(symbols)]))
        return b"".join(rng.choices(few, k=size))


def check(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        vocabulary = Vocabulary(rng)
        if not vocabulary.merges:
            continue
        encoder = vocabulary.encoder(rng.choice([64, 1 << 12]))
        for _ in range(6):
            text = vocabulary.text(rng)
            expected = vocabulary.encode(text)
            for _ in range(2):  # without and with what the cache holds
                assert encoder.encode_to_list(text, b"") == expected, f"seed {seed}: {text!r}"


def test_any_vocabulary_encodes_as_defined() -> None:
    check(range(60))


@pytest.mark.slow
def test_many_vocabularies_encode_as_defined() -> None:
    check(range(1000, 2500))
