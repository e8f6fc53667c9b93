"""BPE training in plain Python: the readable twin of csrc/text/bpe_train_*.cpp.

Both give the same merges: the most frequent pair first; of equally frequent pairs the greatest
pair of byte strings. Special tokens split the corpus and are not counted. Algorithm: Sennrich,
Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units", arXiv 1508.07909.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from lmworks.tokenizer.pretokenize import split

Pair = tuple[bytes, bytes]
Word = tuple[bytes, ...]


def train_bpe_reference(
    texts: Iterable[str | bytes],
    max_merges: int,
    *,
    pattern: str = "gpt2",
    special_tokens: Sequence[str] = (),
) -> list[Pair]:
    """Merges in the order of choice; fewer than `max_merges` once no pair is left."""
    words = count_words(texts, pattern, special_tokens)
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
    while len(merges) < max_merges and pair_counts:
        best = max(pair_counts, key=lambda pair: (pair_counts[pair], pair))
        merges.append(best)
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


def count_words(
    texts: Iterable[str | bytes], pattern: str, special_tokens: Sequence[str]
) -> Counter[Word]:
    """How often each piece occurs outside special tokens, as a tuple of single bytes."""
    specials = [s.encode() for s in special_tokens]
    pieces: Counter[bytes] = Counter()
    for text in texts:
        for part in split_specials(text.encode() if isinstance(text, str) else text, specials):
            pieces.update(split(part, pattern))
    return Counter({tuple(bytes([b]) for b in piece): n for piece, n in pieces.items()})


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
