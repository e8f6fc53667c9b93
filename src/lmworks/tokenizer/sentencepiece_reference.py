"""SentencePiece-style BPE in plain Python, written to be obviously right: the slow twin.

It follows the description of the algorithm (sentencepiece, src/bpe_model.cc): symbols in a list;
of all neighbours that can be joined the best, of equals the leftmost, until none can. One join
costs the length of the text, so this is for tests.
"""

import re

from lmworks.tokenizer.sentencepiece_vocabulary import PieceType, Vocabulary

Symbol = tuple[str, bool]  # text, and whether it may be joined


def encode(vocabulary: Vocabulary, text: str) -> list[int]:
    """Ids of a text to which the text rules were applied already."""
    parts_of: dict[str, tuple[str, str]] = {}
    symbols = _symbols(vocabulary, text)
    ranks = _merge_ranks(vocabulary)
    while True:
        best: tuple[float, int] | None = None
        for at in range(len(symbols) - 1):
            rank = _rank(vocabulary, ranks, symbols[at], symbols[at + 1])
            if rank is not None and (best is None or rank < best[0]):
                best = rank, at
        if best is None:
            break
        at = best[1]
        left, right = symbols[at][0], symbols[at + 1][0]
        parts_of[left + right] = left, right
        symbols[at : at + 2] = [(left + right, True)]
    ids: list[int] = []
    for symbol, _ in symbols:
        _emit(vocabulary, symbol, parts_of, ids)
    return ids


def _symbols(vocabulary: Vocabulary, text: str) -> list[Symbol]:
    longest_first = sorted(vocabulary.user_defined, key=len, reverse=True)
    fixed = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    symbols: list[Symbol] = []
    at = 0
    while at < len(text):
        match = fixed.match(text, at)
        symbols.append((match.group(), False) if match else (text[at], True))
        at += len(symbols[-1][0])
    return symbols


def _merge_ranks(vocabulary: Vocabulary) -> dict[tuple[str, str], int]:
    pairs = vocabulary.merges or ()
    return {(vocabulary.piece(a), vocabulary.piece(b)): rank for rank, (a, b) in enumerate(pairs)}


def _rank(
    vocabulary: Vocabulary, ranks: dict[tuple[str, str], int], left: Symbol, right: Symbol
) -> float | None:
    """Lower is better; None: these two are not joined."""
    if not left[1] or not right[1]:
        return None
    if vocabulary.scores is None:
        return ranks.get((left[0], right[0]))
    token_id = vocabulary.id_of.get(left[0] + right[0])
    return None if token_id is None else -vocabulary.scores[token_id]


def _emit(
    vocabulary: Vocabulary, symbol: str, parts_of: dict[str, tuple[str, str]], ids: list[int]
) -> None:
    token_id = vocabulary.id_of.get(symbol)
    if token_id is not None:
        if vocabulary.types[token_id] == PieceType.UNUSED and symbol in parts_of:
            for part in parts_of[symbol]:
                _emit(vocabulary, part, parts_of, ids)
        else:
            ids.append(token_id)
    elif vocabulary.byte_ids:
        ids += (vocabulary.byte_ids[byte] for byte in symbol.encode("utf-8"))
    elif vocabulary.unknown_id is not None:
        is_repeated = bool(ids) and ids[-1] == vocabulary.unknown_id
        if not (vocabulary.fuse_unknown and is_repeated):
            ids.append(vocabulary.unknown_id)
