"""Hugging Face `tokenizer.json` of byte-level BPE models, read and written.

Vocabulary keys and merges spell each byte as one letter (GPT-2's `bytes_to_unicode`). Ids are those
of `tokenizers`' `encode(text, add_special_tokens=False)`; the post-processor becomes the template.
`truncation` and `padding` are not read: they are arguments of `Tokenizer.prepare`. What we cannot
reproduce exactly is refused by name. Models without ByteLevel are read by sentencepiece.py.
"""

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final, NoReturn

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer import huggingface_parts as parts
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte_letters import LETTERS
from lmworks.tokenizer.huggingface_parts import is_list, is_object
from lmworks.tokenizer.preprocess import Unknown
from lmworks.tokenizer.schema import field, is_bool, is_int, is_string
from lmworks.tokenizer.special import PLAIN_FLAGS, TokenFlags

# Letter -> byte as Latin-1; what spells no byte leaves Latin-1.
_TO_LATIN1: Final = {
    **dict.fromkeys(range(256), 0xFFFF),
    **{ord(letter): byte for byte, letter in enumerate(LETTERS)},
}
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
    _check_model(model)
    parts.check_decoder(value.get("decoder"))
    pattern, add_prefix_space = parts.read_pre_tokenizer(value.get("pre_tokenizer"))
    vocab: dict[str, int] = _checked_vocab(field(model, "vocab", is_object, "model"))
    special, added, flags = _added_tokens(value.get("added_tokens") or [], vocab)
    merges = _merges(field(model, "merges", is_list, "model"), vocab)
    ignore_merges = bool(model.get("ignore_merges", False))
    holes = _unreached({**special, **added}, vocab, merges)
    if ignore_merges:
        # Where it is no word of its own, a piece that is such a token's text is taken whole.
        holes -= {name for name in added if flags.get(name, PLAIN_FLAGS).single_word}
    tokens = _tokens({key: i for key, i in vocab.items() if key not in holes})
    return BPETokenizer(
        tokens,
        merges,
        pattern=parts.checked_pattern(pattern),
        special_tokens=special,
        added_tokens=added,
        ignore_merges=ignore_merges,
        normalizer=parts.read_normalizer(value.get("normalizer")),
        token_flags=flags,
        add_prefix_space=add_prefix_space,
        unknown=_unknown(model, vocab, tokens, merges),
    )


def _check_model(model: dict[str, Any]) -> None:
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise DataError(f"model.{key}={model[key]!r:.60} is not supported; it must be unset")
    for key in ("ignore_merges", "fuse_unk", "byte_fallback"):
        if not is_bool.is_right(model.get(key) or False):
            raise DataError(f"model.{key}={model[key]!r:.60} must be true or false")


def _checked_vocab(vocab: dict[str, Any]) -> dict[str, int]:
    """The vocabulary, in which each id is a number in range and there once."""
    ids = vocab.values()
    are_numbers = set(map(type, ids)) <= {int} and len(set(ids)) == len(vocab)
    if are_numbers and (not vocab or 0 <= min(ids) <= max(ids) < _text.MAX_TOKENS):
        return vocab
    seen: dict[int, str] = {}
    for key, token_id in vocab.items():
        if not is_int.is_right(token_id) or not 0 <= token_id < _text.MAX_TOKENS:
            raise DataError(
                f"model.vocab[{key!r:.60}]={token_id!r:.60} is not an id in "
                f"0..{_text.MAX_TOKENS - 1}"
            )
        if seen.setdefault(token_id, key) != key:
            raise DataError(
                f"model.vocab: id {token_id} is given twice, the second time to {key!r:.60}"
            )
    raise AssertionError("one of them is wrong")


def _tokens(vocab: Mapping[str, int]) -> list[bytes | None]:
    """Bytes by id. All keys are spelt out at once: a letter is a byte."""
    if "" in vocab:
        raise DataError("model.vocab holds an empty token; a token has at least one byte")
    try:
        spelt = "".join(vocab).translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        _refuse_spelling(vocab)
    tokens: list[bytes | None] = [None] * (max(vocab.values(), default=-1) + 1)
    at = 0
    for key, token_id in vocab.items():
        end = at + len(key)
        tokens[token_id] = spelt[at:end]
        at = end
    return tokens


def _refuse_spelling(vocab: Mapping[str, int]) -> NoReturn:
    known = set(LETTERS)
    key = next(key for key in vocab if not known.issuperset(key))
    letter = next(letter for letter in key if letter not in known)
    raise DataError(
        f"model.vocab: {key!r:.60} holds {letter!r}, which spells no byte; "
        "only byte-level vocabularies can be read"
    )


def _merges(entries: list[Any], vocab: Mapping[str, int]) -> list[tuple[int, int]]:
    """Pairs of ids, from both spellings: ["a", "b"] and "a b". Of equal ones the last counts."""
    if entries and isinstance(entries[0], str) and set(map(type, entries)) == {str}:
        pairs: list[list[str]] = [entry.split(" ") for entry in entries]
    else:
        pairs = entries
    try:
        if not set(map(type, pairs)) <= {list} or not set(map(len, pairs)) <= {2}:
            _refuse_merge(entries, vocab)
        ids = list(map(vocab.__getitem__, chain.from_iterable(pairs)))
    except (KeyError, TypeError):
        _refuse_merge(entries, vocab)
    merges = list(zip(ids[::2], ids[1::2], strict=True))
    if len(set(merges)) < len(merges):
        last_first = dict.fromkeys(reversed(merges))
        merges = list(reversed(last_first))
    return merges


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
    special: dict[str, int] = {}
    added: dict[str, int] = {}
    flags: dict[str, TokenFlags] = {}
    num_new = 0
    for i, entry in enumerate(entries):
        where = f"added_tokens[{i}]"
        content = field(entry, "content", is_string, where)
        token_id = field(entry, "id", is_int, where)
        values = {name: entry.get(name, False) for name in (*TokenFlags.__slots__, "special")}
        for name, flag in values.items():
            if not is_bool.is_right(flag):
                raise DataError(f"{where}.{name} must be true or false, got {flag!r:.60}")
        if content in vocab:
            expected = vocab[content]
        elif content in flags:
            expected = special[content] if content in special else added[content]
        else:
            # `tokenizers` ignores the file's id then and numbers on from the vocabulary's size.
            expected = len(vocab) + num_new
            num_new += 1
        if token_id != expected:
            raise DataError(
                f"{where}: token {content!r:.60} has id {token_id}, but `tokenizers` gives it "
                f"{expected}; put it in model.vocab with the id that is meant"
            )
        special.pop(content, None)
        added.pop(content, None)
        (special if values.pop("special") else added)[content] = token_id
        flags[content] = TokenFlags(**values)
    return special, added, {name: f for name, f in flags.items() if f != PLAIN_FLAGS}


def _unreached(
    names: Mapping[str, int], vocab: Mapping[str, int], merges: list[tuple[int, int]]
) -> set[str]:
    """Added tokens in the vocabulary that no merge makes or uses: text never leads to them."""
    inside = [name for name in names if name in vocab]
    if not inside:
        return set()
    used = set(chain.from_iterable(merges))
    pairs: set[tuple[int, int]] | None = None
    holes = set()
    for name in inside:
        splits = [
            (vocab[name[:k]], vocab[name[k:]])
            for k in range(1, min(len(name), 1024))
            if name[:k] in vocab and name[k:] in vocab
        ]
        if splits and pairs is None:
            pairs = set(merges)
        is_made = any(pair in pairs for pair in splits) if pairs is not None else False
        is_byte = len(name) == 1 and name in LETTERS
        if vocab[name] not in used and not is_made and not is_byte:
            holes.add(name)
    return holes


def _unknown(
    model: dict[str, Any],
    vocab: Mapping[str, int],
    tokens: list[bytes | None],
    merges: list[tuple[int, int]],
) -> Unknown | None:
    """What becomes of the bytes that the vocabulary lacks; None when it has all."""
    unk = model.get("unk_token")
    if not isinstance(unk, str | None):
        raise DataError(f"model.unk_token={unk!r:.60} must be a string or null")
    single = {token for token in tokens if token is not None and len(token) == 1}
    if len(single) == 256:
        return None
    if model.get("byte_fallback"):
        raise DataError("model.byte_fallback is not supported in a vocabulary that lacks bytes")
    if unk is None:
        return Unknown()
    if unk not in vocab:
        raise DataError(f"model.unk_token={unk!r:.60} is not in model.vocab")
    if vocab[unk] in set(chain.from_iterable(merges)):
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
        "pre_tokenizer": parts.write_pre_tokenizer(
            tokenizer.pattern, add_prefix_space=tokenizer.add_prefix_space
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
