"""Hugging Face `tokenizer.json` of byte-level BPE models, read and written.

Vocabulary keys and merges spell each byte as one letter (GPT-2's `bytes_to_unicode`). Ids are those
of `tokenizers`' `encode(text, add_special_tokens=False)`; the post-processor becomes the template.
`truncation` and `padding` are not read: they are arguments of `Tokenizer.prepare`. What we cannot
reproduce exactly is refused by name. Models without ByteLevel are read by sentencepiece.py.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import chain, count, filterfalse, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

from lmworks.base.errors import DataError
from lmworks.tokenizer import huggingface_parts as parts
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte_letters import LETTERS
from lmworks.tokenizer.huggingface_parts import is_list, is_object
from lmworks.tokenizer.huggingface_pieces import Cutting, read_pre_tokenizer, write_pre_tokenizer
from lmworks.tokenizer.preprocess import Unknown
from lmworks.tokenizer.schema import field, is_bool, is_int, is_string
from lmworks.tokenizer.special import PLAIN_FLAGS, TokenFlags
from lmworks.tokenizer.token_table import TokenTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FROM_LATIN1: Final = dict(enumerate(LETTERS))


# ---- reading ----


def from_json(value: dict[str, Any]) -> Tokenizer:
    """The tokenizer that a parsed tokenizer.json describes."""
    model = field(value, "model", is_object, "tokenizer.json")
    if model.get("type", "BPE") != "BPE":
        raise DataError(
            f"model.type={model['type']!r:.40} is not supported; only 'BPE' can be read"
        )
    steps = parts.steps_of(value.get("pre_tokenizer"), "pretokenizers")
    if any(step["type"] == "ByteLevel" for step in steps):
        tokenizer: Tokenizer = _byte_level_bpe(value, model)
    else:
        from lmworks.tokenizer import sentencepiece

        tokenizer = sentencepiece.from_huggingface(value)
    tokenizer.template = parts.read_post_processor(value.get("post_processor"))
    return tokenizer


def _byte_level_bpe(value: dict[str, Any], model: dict[str, Any]) -> BPETokenizer:
    parts.check_model(model)
    parts.check_decoder(value.get("decoder"))
    cutting = read_pre_tokenizer(value.get("pre_tokenizer"))
    vocab: dict[str, int] = parts.checked_vocab(model)
    special, added, flags = _added_tokens(value.get("added_tokens") or [], vocab)
    merges = _merges(field(model, "merges", is_list, "model"), vocab)
    ignore_merges = bool(model.get("ignore_merges", False))
    holes = _unreached({**special, **added}, vocab, merges)
    if ignore_merges:
        # Where it is no word of its own, a piece that is such a token's text is taken whole.
        holes -= {name for name in added if flags.get(name, PLAIN_FLAGS).single_word}
    words = dict(vocab)
    for name in holes:
        del words[name]
    tokens = _tokens(words)
    return BPETokenizer(
        tokens,
        merges,
        pattern=cutting.pattern,
        special_tokens=special,
        added_tokens=added,
        ignore_merges=ignore_merges,
        normalizer=parts.read_normalizer(value.get("normalizer")),
        token_flags=flags,
        add_prefix_space=cutting.add_prefix_space,
        piece_steps=cutting.piece_steps,
        unknown=_unknown(model, vocab, tokens, merges),
    )


def _tokens(vocab: Mapping[str, int]) -> TokenTable:
    """Bytes by id. All keys are spelt out at once: a letter is a byte."""
    import numpy as np

    if "" in vocab:
        raise DataError("model.vocab holds an empty token; a token has at least one byte")
    ids = list(vocab.values())
    if ids != sorted(ids):
        vocab = dict(sorted(vocab.items(), key=lambda item: item[1]))
    # Letters are single UTF-16 units; halves of other characters spell no byte either.
    byte_of = np.full(1 << 16, 256, np.uint16)
    byte_of[list(map(ord, LETTERS))] = np.arange(256)
    letters = np.frombuffer("".join(vocab).encode("utf-16-le", "surrogatepass"), "<u2")
    spelt = byte_of[letters]
    if spelt.max(initial=0) > 255:
        _refuse_spelling(vocab)
    return TokenTable.by_id(spelt.astype(np.uint8).tobytes(), map(len, vocab), vocab.values())


def _refuse_spelling(vocab: Mapping[str, int]) -> NoReturn:
    known = set(LETTERS)
    key = next(key for key in vocab if not known.issuperset(key))
    letter = next(letter for letter in key if letter not in known)
    raise DataError(
        f"model.vocab: {key!r:.60} holds {letter!r}, which spells no byte; "
        "only byte-level vocabularies can be read"
    )


def _merges(entries: list[Any], vocab: Mapping[str, int]) -> "NDArray[np.uint32]":
    """Pairs of ids [M, 2], spelt ["a", "b"] or "a b". Of equal ones the last counts."""
    import numpy as np

    parts: Iterable[str]
    try:
        if entries and isinstance(entries[0], str):
            if set(map(str.count, entries, repeat(" "))) != {1}:
                _refuse_merge(entries, vocab)
            parts = " ".join(entries).split(" ")
        else:
            if not set(map(type, entries)) <= {list} or not set(map(len, entries)) <= {2}:
                _refuse_merge(entries, vocab)
            parts = chain.from_iterable(entries)
        ids = map(vocab.__getitem__, parts)
        merges = np.fromiter(ids, np.uint32, 2 * len(entries)).reshape(-1, 2)
    except (KeyError, TypeError):
        _refuse_merge(entries, vocab)
    pairs = merges.astype(np.uint64)
    keys = pairs[:, 0] << np.uint64(32) | pairs[:, 1]
    in_order = np.sort(keys)
    if (in_order[1:] != in_order[:-1]).all():
        return merges
    _, lasts = np.unique(keys[::-1], return_index=True)
    kept: NDArray[np.uint32] = merges[np.sort(len(merges) - 1 - lasts)]
    return kept


def _refuse_merge(entries: list[Any], vocab: Mapping[str, int]) -> NoReturn:
    for rank, entry in enumerate(entries):
        pair = entry.split(" ") if isinstance(entry, str) else entry
        is_pair = isinstance(pair, list) and len(pair) == 2
        if not is_pair or not all(isinstance(part, str) for part in pair):
            raise DataError(f'model.merges[{rank}]={entry!r:.60} is neither ["a", "b"] nor "a b"')
        for part in pair:
            if part not in vocab:
                raise DataError(
                    f"model.merges[{rank}]={entry!r:.60}: {part!r:.60} is not in model.vocab"
                )
    raise DataError('model.merges mixes ["a", "b"] and "a b"; use one of them')


def _added_tokens(
    entries: Any, vocab: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int], dict[str, TokenFlags]]:
    """Special tokens, other added tokens, and the flags of both. Of equal ones the last counts."""
    if not isinstance(entries, list):
        raise DataError(f"added_tokens must be a list, got {type(entries).__name__}")
    # In whole passes: there may be tens of thousands.
    contents, ids, specials, *flags = _added_columns(entries)
    # `tokenizers` ignores the file's ids of new ones and numbers on from the vocabulary's size.
    new = dict.fromkeys(filterfalse(vocab.__contains__, contents))
    new_ids = dict(zip(new, count(len(vocab)), strict=False))
    expected = [new_ids[name] if name in new_ids else vocab[name] for name in contents]
    if expected != ids:
        i = next(i for i, token_id in enumerate(ids) if token_id != expected[i])
        raise DataError(
            f"added_tokens[{i}]: token {contents[i]!r:.60} has id {ids[i]}, but `tokenizers` "
            f"gives it {expected[i]}; put it in model.vocab with the id that is meant"
        )
    is_special = dict(zip(contents, specials, strict=True))
    found = dict(zip(contents, ids, strict=True))
    flags_of = (
        dict(zip(contents, zip(*flags, strict=True), strict=True)) if any(map(any, flags)) else {}
    )
    known = {values: TokenFlags(*values) for values in set(flags_of.values())}
    return (
        {name: token_id for name, token_id in found.items() if is_special[name]},
        {name: token_id for name, token_id in found.items() if not is_special[name]},
        {name: known[values] for name, values in flags_of.items() if any(values)},
    )


_ADDED_FLAGS: Final = ("special", *TokenFlags.__slots__)


def _added_columns(entries: list[Any]) -> list[list[Any]]:
    """The texts, the ids, whether each is special, and a list for each flag of TokenFlags."""
    if set(map(type, entries)) == {dict}:
        columns = [_column(entries, name) for name in ("content", "id", *_ADDED_FLAGS)]
        types = [set(map(type, column)) for column in columns]
        if types == [{str}, {int}, *[{bool}] * len(_ADDED_FLAGS)]:
            return columns
    for i, entry in enumerate(entries):
        where = f"added_tokens[{i}]"
        field(entry, "content", is_string, where)
        field(entry, "id", is_int, where)
        for name in _ADDED_FLAGS:
            if not is_bool.is_right(entry.get(name, False)):
                raise DataError(f"{where}.{name} must be true or false, got {entry[name]!r:.60}")
    assert not entries, "one of them is wrong"
    return [[] for _ in ("content", "id", *_ADDED_FLAGS)]


def _column(entries: list[dict[str, Any]], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), entries))
    except KeyError:
        return [entry.get(name, False) for entry in entries]


def _unreached(
    names: Mapping[str, int], vocab: Mapping[str, int], merges: "NDArray[np.uint32]"
) -> set[str]:
    """Added tokens in the vocabulary that no merge makes or uses: text never leads to them."""
    inside = [name for name in names if name in vocab]
    if not inside:
        return set()
    used = _used(merges)
    pairs: set[tuple[int, int]] | None = None
    holes = set()
    for name in inside:
        splits = [
            (vocab[name[:k]], vocab[name[k:]])
            for k in range(1, min(len(name), 1024))
            if name[:k] in vocab and name[k:] in vocab
        ]
        if splits and pairs is None:
            pairs = set(zip(*merges.T.tolist(), strict=True))
        is_made = any(pair in pairs for pair in splits) if pairs is not None else False
        is_byte = len(name) == 1 and name in LETTERS
        if vocab[name] not in used and not is_made and not is_byte:
            holes.add(name)
    return holes


def _used(merges: "NDArray[np.uint32]") -> set[int]:
    """The ids that some merge joins."""
    import numpy as np

    return set(np.flatnonzero(np.bincount(merges.ravel())).tolist())


def _unknown(
    model: dict[str, Any],
    vocab: Mapping[str, int],
    tokens: TokenTable,
    merges: "NDArray[np.uint32]",
) -> Unknown | None:
    """What becomes of the bytes that the vocabulary lacks; None when it has all."""
    unk = model.get("unk_token")
    if not tokens.missing_bytes():
        return None
    if model.get("byte_fallback"):
        raise DataError("model.byte_fallback is not supported in a vocabulary that lacks bytes")
    if unk is None:
        return Unknown()
    if unk not in vocab:
        raise DataError(f"model.unk_token={unk!r:.60} is not in model.vocab")
    if vocab[unk] in _used(merges):
        raise DataError(f"model.unk_token={unk!r:.60} is part of a merge, which is not supported")
    return Unknown(vocab[unk], bool(model.get("fuse_unk", False)))


# ---- writing ----


def to_json(tokenizer: BPETokenizer) -> str:
    """tokenizer.json that Hugging Face's `tokenizers` loads to the same ids."""
    letters = [
        None if token is None else token.decode("latin-1").translate(_FROM_LATIN1)
        for token in tokenizer.tokens
    ]
    vocab = {token: i for i, token in enumerate(letters) if token is not None}
    specials = tokenizer.special_tokens
    names = sorted({**specials, **tokenizer.added_tokens}.items(), key=lambda item: item[1])
    for name, token_id in names:
        # In the vocabulary too: otherwise `tokenizers` would number it anew.
        if vocab.setdefault(name, token_id) != token_id:
            raise DataError(
                f"special token {name!r} has no Hugging Face form: it is spelt like token "
                f"{vocab[name]} of the vocabulary"
            )
    flags = tokenizer._specials.flags
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_entry(name, token_id, flags.get(name, PLAIN_FLAGS), name in specials)
            for name, token_id in names
        ],
        "normalizer": parts.write_normalizer(tokenizer.normalizer),
        "pre_tokenizer": write_pre_tokenizer(
            Cutting(tokenizer.pattern, tokenizer.add_prefix_space, tokenizer.piece_steps)
        ),
        "post_processor": parts.write_post_processor(
            tokenizer.template, {token_id: name for name, token_id in names}
        ),
        "decoder": parts.write_decoder(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": _unk_token(tokenizer, vocab),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": tokenizer.unknown is not None and tokenizer.unknown.fuse,
            "byte_fallback": False,
            "ignore_merges": tokenizer.ignore_merges,
            "vocab": dict(sorted(vocab.items(), key=lambda item: item[1])),
            "merges": [[letters[a], letters[b]] for a, b in tokenizer.merges],
        },
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _added_entry(name: str, token_id: int, flags: TokenFlags, is_special: bool) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": name,
        "single_word": flags.single_word,
        "lstrip": flags.lstrip,
        "rstrip": flags.rstrip,
        "normalized": flags.normalized,
        "special": is_special,
    }


def _unk_token(tokenizer: BPETokenizer, vocab: Mapping[str, int]) -> str | None:
    if tokenizer.unknown is None or tokenizer.unknown.token_id is None:
        return None
    return next(name for name, i in vocab.items() if i == tokenizer.unknown.token_id)
