"""BPE training in plain Python: the readable twin of csrc/text/bpe_train_*.cpp.

Both give the same merges: the most frequent pair first; of equally frequent pairs the greatest
pair of byte strings (ties="bytes") or the one with the smallest ids (ties="huggingface", as
huggingface/tokenizers' BpeTrainer). Special tokens split the corpus and are not counted. Algorithm:
Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units",
arXiv 1508.07909.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from lmworks.tokenizer.pretokenize import split

Pair = tuple[bytes, bytes]
Word = tuple[bytes, ...]

ALL_BYTES = bytes(range(256))
_PRINTABLE = bytes([*range(33, 127), *range(161, 173), *range(174, 256)])
HUGGINGFACE_BYTES = _PRINTABLE + bytes(b for b in ALL_BYTES if b not in _PRINTABLE)
"""Bytes in the order of the characters that stand for them in a tokenizer.json."""


def train_bpe_reference(
    texts: Iterable[str | bytes],
    max_merges: int,
    *,
    pattern: str = "gpt2",
    special_tokens: Sequence[str] = (),
    ties: str = "bytes",
    min_frequency: int = 1,
    max_token_bytes: int | None = None,
    initial_merges: Sequence[Pair] = (),
    seeds: Sequence[bytes] = (),
    reserved: Sequence[bytes] = (),
    initial_alphabet: bytes = ALL_BYTES,
    alphabet_limit: int = 256,
) -> list[Pair]:
    """New merges in the order of choice; fewer than there is room for once no pair is left.

    Each of the 256 bytes that is no token is room for one merge more than `max_merges`. Initial
    merges are applied to all pieces first. The seeds become tokens by the merges that training on
    them alone gives. No merge makes a reserved byte string, or a token that is there already.
    """
    pieces = count_pieces(texts, pattern, special_tokens)
    wanted = initial_alphabet + b"".join([*seeds, *(a + b for a, b in initial_merges)])
    alphabet = choose_alphabet(pieces, wanted, alphabet_limit)
    max_merges += 256 - len(alphabet)

    merges: list[Pair] = []
    if seeds:
        words = segment_all(Counter(dict.fromkeys(seeds, 1)), alphabet, initial_merges)
        order = TieOrder(ties, alphabet, initial_merges)
        merges = merge_words(words, len(b"".join(seeds)), order, lambda pair, count: True)
        if len(merges) > max_merges:
            raise ValueError(f"the seed tokens need {len(merges)} merges, only {max_merges} fit")
    first = [*initial_merges, *merges]
    taken = {*reserved, *(a + b for a, b in first)}

    def is_allowed(pair: Pair, count: int) -> bool:
        token = pair[0] + pair[1]
        is_short = max_token_bytes is None or len(token) <= max_token_bytes
        return count >= min_frequency and is_short and token not in taken

    words = segment_all(pieces, alphabet, first)
    order = TieOrder(ties, alphabet, first)
    return merges + merge_words(words, max_merges - len(merges), order, is_allowed)


class TieOrder:
    """Key of a pair: of equally frequent pairs the one with the greatest key is merged."""

    def __init__(self, ties: str, alphabet: bytes, merges: Sequence[Pair]) -> None:
        self.is_by_id = ties == "huggingface"
        self.ids: dict[bytes, int] = {}
        for token in [*(bytes([b]) for b in alphabet), *(a + b for a, b in merges)]:
            self.add(token)

    def add(self, token: bytes) -> None:
        """Give the token the next id, unless it has one."""
        self.ids.setdefault(token, len(self.ids))

    def __call__(self, pair: Pair) -> Pair | tuple[int, int]:
        return (-self.ids[pair[0]], -self.ids[pair[1]]) if self.is_by_id else pair


def merge_words(
    words: Counter[Word],
    max_merges: int,
    order: TieOrder,
    is_allowed: Callable[[Pair, int], bool],
) -> list[Pair]:
    """Merge the best allowed pair of all words until none is left."""
    pair_counts: Counter[Pair] = Counter()
    words_with: defaultdict[Pair, set[Word]] = defaultdict(set)

    def add(word: Word, count: int) -> None:
        words[word] += count
        for pair in pairwise(word):
            pair_counts[pair] += count
            words_with[pair].add(word)

    def remove(word: Word) -> int:
        count = words.pop(word)
        for pair in pairwise(word):
            pair_counts[pair] -= count
            words_with[pair].discard(word)
            if pair_counts[pair] == 0:
                del pair_counts[pair]
        return count

    for word in list(words):
        add(word, words.pop(word))

    merges: list[Pair] = []
    while len(merges) < max_merges:
        allowed = (pair for pair, count in pair_counts.items() if is_allowed(pair, count))
        best = max(allowed, key=lambda pair: (pair_counts[pair], order(pair)), default=None)
        if best is None:
            break
        merges.append(best)
        order.add(best[0] + best[1])
        for word in list(words_with[best]):
            add(merge_pair(word, best), remove(word))
    return merges


def merge_pair(word: Word, pair: Pair) -> Word:
    """The word with each occurrence of the pair, from left to right, made one symbol."""
    merged: list[bytes] = []
    i = 0
    while i < len(word):
        if word[i : i + 2] == pair:
            merged.append(pair[0] + pair[1])
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return tuple(merged)


def segment_all(pieces: Counter[bytes], alphabet: bytes, merges: Sequence[Pair]) -> Counter[Word]:
    """Pieces as words of the alphabet's bytes, after the merges; other bytes are dropped."""
    ranks: dict[Pair, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault(pair, rank)
    words: Counter[Word] = Counter()
    for piece, count in pieces.items():
        word: Word = tuple(bytes([b]) for b in piece if b in alphabet)
        while pairs := [pair for pair in pairwise(word) if pair in ranks]:
            word = merge_pair(word, min(pairs, key=ranks.__getitem__))
        words[word] += count
    return words


def choose_alphabet(pieces: Counter[bytes], wanted: bytes, limit: int) -> bytes:
    """Bytes that are tokens, in the order of Hugging Face's ids.

    All that are wanted; then, up to the limit, those that occur, the most frequent first (of equals
    the first in the order).
    """
    counts: Counter[int] = Counter()
    for piece, count in pieces.items():
        for b in piece:
            counts[b] += count
    kept = {b for b in ALL_BYTES if b in wanted}
    for b in sorted(HUGGINGFACE_BYTES, key=lambda b: -counts[b]):
        if len(kept) < limit and counts[b]:
            kept.add(b)
    return bytes(b for b in HUGGINGFACE_BYTES if b in kept)


def count_pieces(
    texts: Iterable[str | bytes], pattern: str, special_tokens: Sequence[str]
) -> Counter[bytes]:
    """How often each piece occurs outside special tokens."""
    specials = [s.encode() for s in special_tokens]
    pieces: Counter[bytes] = Counter()
    for text in texts:
        for part in split_specials(text.encode() if isinstance(text, str) else text, specials):
            pieces.update(split(part, pattern))
    return pieces


def split_specials(text: bytes, specials: Sequence[bytes]) -> list[bytes]:
    """The text between special tokens, found left to right, the longest first at each place."""
    parts: list[bytes] = []
    start = i = 0
    while i < len(text):
        found = max((s for s in specials if text.startswith(s, i)), key=len, default=None)
        if found is None:
            i += 1
        else:
            parts.append(text[start:i])
            start = i = i + len(found)
    return [*parts, text[start:]]
