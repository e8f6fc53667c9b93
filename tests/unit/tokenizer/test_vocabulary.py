"""Vocabularies read natively, against the obvious way in Python."""

import base64
import itertools
import pickle
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer import tiktoken
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.token_table import TokenTable, pack_tokens

BYTES = [bytes([i]) for i in range(256)]
WORDS = st.lists(st.binary(min_size=2, max_size=5), unique=True, max_size=12)
LETTERS = st.text("ab", min_size=2, max_size=70).map(str.encode)


def merged(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """tiktoken's rule with the ranks below the token's own, down to two parts."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [a + b for a, b in itertools.pairwise(parts)]
        best = min(joined, key=lambda pair: ranks.get(pair, len(ranks)))
        if ranks.get(best, len(ranks)) >= ranks[token]:
            break
        at = joined.index(best)
        parts[at : at + 2] = [best]
    return parts


def splits(token: bytes, ranks: dict[bytes, int]) -> list[tuple[int, int, int]]:
    halves = [(token[:i], token[i:]) for i in range(1, len(token))]
    return [
        (ranks[left], ranks[right], ranks[token])
        for left, right in halves
        if left in ranks and right in ranks
    ]


@given(st.lists(LETTERS, unique=True, max_size=40))
def test_merges_from_ranks_are_those_of_tiktokens_rule(words: list[bytes]) -> None:
    tokens = [b"b", b"a", *words]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    expected: list[tuple[int, int, int]] = []
    for word in words:
        parts = merged(word, ranks)
        if len(parts) == 2:
            expected.append((ranks[parts[0]], ranks[parts[1]], ranks[word]))
        else:
            expected += splits(word, ranks)
    found, has_unreachable = _text.recover_merges(*pack_tokens(tokens))
    assert list(map(tuple, found.reshape(-1, 3).tolist())) == expected
    assert has_unreachable == any(len(merged(word, ranks)) > 2 for word in words)


@given(st.lists(st.text("aé日", min_size=1, max_size=8).map(str.encode), unique=True))
def test_all_splits_are_between_characters_and_complete(tokens: list[bytes]) -> None:
    ranks = {token: rank for rank, token in enumerate(tokens)}
    expected = [split for token in tokens[1:] for split in splits(token, ranks)]
    found = _text.all_splits(*pack_tokens(tokens), 1)
    assert list(map(tuple, found.reshape(-1, 3).tolist())) == expected


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1), st.randoms(use_true_random=False))
def test_a_rank_file_is_read_natively_as_in_python(words: list[bytes], random: Random) -> None:
    order = list(range(0, 3 * len(words), 3))
    random.shuffle(order)
    lines = [base64.b64encode(w) + b" %d\n" % rank for w, rank in zip(words, order, strict=True)]
    data = b"".join(lines)
    found = _text.parse_ranks(data)
    assert found is not None
    assert list(TokenTable(*found)) == tiktoken._parse(data)


@given(st.binary(max_size=3), st.integers(0, 24))
def test_a_damaged_rank_file_is_read_as_in_python_or_left_to_it(patch: bytes, at: int) -> None:
    data = b"YWI= 0\nYQ== 1\r\n\nYWJj 12\n"
    data = data[:at] + patch + data[at + len(patch) :]
    found = _text.parse_ranks(data)
    if found is not None:
        assert list(TokenTable(*found)) == tiktoken._parse(data)


@pytest.mark.parametrize(
    "data",
    b"|\n|YQ==|YQ== -1|YQ= 1|A=== 1|YQ==  1|YQ== 1\nYg== 1\n|YQ== 2097151|YQ== 9999999999|"
    b"Y\xffQ= 1|=AAA 1| 1|YQ== 1 2".split(b"|"),
)
def test_unusual_lines_are_left_to_python(data: bytes) -> None:
    assert _text.parse_ranks(data) is None


@given(st.lists(st.none() | st.binary(min_size=1, max_size=3)))
def test_a_table_gives_the_tokens_back(tokens: list[bytes | None]) -> None:
    table = TokenTable.of(tokens)
    assert list(table) == tokens
    assert [table[i] for i in range(len(table))] == tokens
    assert table.missing_bytes() == bytes(b for b in range(256) if bytes([b]) not in tokens)


@given(WORDS)
def test_a_pickled_copy_has_tokens_merges_and_fingerprint(words: list[bytes]) -> None:
    tokens = [*BYTES, *words]
    merges = [(word[0], 256 + words.index(word[1:])) for word in words if word[1:] in words]
    original = BPETokenizer(tokens, merges, pattern="gpt2", special_tokens={"<e>": 300})
    copy = pickle.loads(pickle.dumps(original))
    assert (copy.tokens, copy.merges) == (tuple(tokens), tuple(merges))
    assert copy.fingerprint == original.fingerprint
    assert copy.decode_bytes([300, 97, len(tokens) - 1]) == b"<e>a" + tokens[-1]


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(DataError, match="token 1 is empty"):
        TokenTable.of([b"a", b""])
