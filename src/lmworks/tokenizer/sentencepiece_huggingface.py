"""Hugging Face `tokenizer.json` of SentencePiece-style models: Llama 2, Mistral, Gemma.

Their BPE starts from characters and joins by a list of merges; spaces become U+2581 in a normalizer
(Prepend, Replace) or in a pre-tokenizer (Metaspace). What we cannot reproduce exactly is refused by
name. The decoder is only checked to be of this family: decoding follows SentencePiece.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from lmworks.base.errors import DataError
from lmworks.tokenizer.huggingface_parts import (
    check_model,
    checked_vocab,
    is_list,
    is_object,
    steps_of,
    types_of,
    write_post_processor,
)
from lmworks.tokenizer.schema import field, is_bool, is_int, is_string
from lmworks.tokenizer.sentencepiece import SentencePieceTokenizer
from lmworks.tokenizer.sentencepiece_text import SPACE, Prefix, PrefixAt, TextRules
from lmworks.tokenizer.sentencepiece_vocabulary import BYTE_NAMES, PieceType, Vocabulary
from lmworks.tokenizer.special import TokenFlags

_DECODERS: Final = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "Sequence"}
_REPLACE: Final = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND: Final = {"type": "Prepend", "prepend": SPACE}


# ---- reading ----


def from_huggingface(value: Mapping[str, Any]) -> SentencePieceTokenizer:
    """The tokenizer that a parsed tokenizer.json describes, without its post-processor."""
    model = field(value, "model", is_object, "tokenizer.json")
    check_model(model, can_ignore_merges=False)
    rules, split_words = _rules(value)
    _check_decoder(value.get("decoder"))
    entries = value.get("added_tokens") or []
    vocab = checked_vocab(model)
    has_symbols = bool(value.get("normalizer")) and rules.prefix == "none"
    symbols = _symbols(entries, vocab) if has_symbols else set()
    entries = [e for e in entries if not symbols or e["content"] not in symbols]
    special, added, flags = _added_tokens(entries, has_normalizer=bool(value.get("normalizer")))
    unknown = model.get("unk_token")
    if unknown is not None and unknown not in vocab:
        raise DataError(f"model.unk_token={unknown!r:.60} is not in model.vocab")
    return SentencePieceTokenizer(
        _vocabulary(model, vocab, {**special, **added}, symbols),
        rules,
        special_tokens=special,
        added_tokens=added,
        token_flags=flags,
        unknown_text=unknown or "",
        split_words=split_words,
    )


def _symbols(entries: Any, vocab: Mapping[str, int]) -> set[str]:
    """Added tokens that are looked for in the normalized text: user-defined pieces."""
    if not isinstance(entries, list):
        return set()
    flags = ("special", "lstrip", "rstrip", "single_word")
    return {
        entry["content"]
        for entry in entries
        if isinstance(entry, dict)
        and entry.get("normalized")
        and not any(entry.get(flag) for flag in flags)
        and isinstance(entry.get("content"), str)
        and " " not in entry["content"]
        and entry["content"]
        and vocab.get(entry["content"]) == entry.get("id")
    }


def _vocabulary(
    model: dict[str, Any], vocab: dict[str, int], added: Mapping[str, int], symbols: set[str]
) -> Vocabulary:
    by_id = {token_id: piece for piece, token_id in vocab.items()}
    for name, token_id in added.items():
        if vocab.get(name, token_id) != token_id:
            raise DataError(
                f"token {name!r} has id {token_id} in added_tokens, {vocab[name]} in model.vocab"
            )
    entries = field(model, "merges", is_list, "model")
    merges = tuple(_merge(entry, rank, vocab) for rank, entry in enumerate(entries))
    used = {vocab[by_id[a] + by_id[b]] for a, b in merges if by_id[a] + by_id[b] in vocab}
    used.update(token_id for pair in merges for token_id in pair)
    byte_names = set(BYTE_NAMES) if model.get("byte_fallback") else set()
    if byte_names - vocab.keys() == byte_names:
        byte_names = set()

    unknown = model.get("unk_token")
    for name, token_id in added.items():
        # An added token is found before; unless merges make it, no text leads to its piece.
        if name in vocab and name != unknown and token_id not in used:
            del by_id[token_id]

    def type_of(piece: str | None) -> PieceType:
        if piece is not None and piece == unknown:
            return PieceType.UNKNOWN
        if piece in symbols:
            return PieceType.USER_DEFINED
        return PieceType.BYTE if piece in byte_names else PieceType.NORMAL

    pieces = tuple(by_id.get(i) for i in range(max(by_id, default=-1) + 1))
    return Vocabulary(
        pieces=pieces,
        types=tuple(map(type_of, pieces)),
        merges=merges,
        fuse_unknown=bool(model.get("fuse_unk")),
    )


def _merge(entry: Any, rank: int, vocab: dict[str, int]) -> tuple[int, int]:
    """Both spellings: ["a", "b"] and "a b"."""
    parts = entry.split(" ") if isinstance(entry, str) else entry
    is_pair = isinstance(parts, list) and len(parts) == 2
    if not is_pair or not all(isinstance(p, str) and p for p in parts):
        raise DataError(f'model.merges[{rank}]={entry!r:.60} is neither ["a", "b"] nor "a b"')
    for part in parts:
        if part not in vocab:
            raise DataError(f"model.merges[{rank}]={entry!r:.60}: {part!r:.60} is not in the vocab")
    return vocab[parts[0]], vocab[parts[1]]


def _added_tokens(
    entries: Any, *, has_normalizer: bool
) -> tuple[dict[str, int], dict[str, int], dict[str, TokenFlags]]:
    if not isinstance(entries, list):
        raise DataError(f"added_tokens must be a list, got {type(entries).__name__}")
    special: dict[str, int] = {}
    added: dict[str, int] = {}
    flags: dict[str, TokenFlags] = {}
    for i, entry in enumerate(entries):
        where = f"added_tokens[{i}]"
        content = field(entry, "content", is_string, where)
        token_id = field(entry, "id", is_int, where)
        if has_normalizer and entry.get("normalized"):
            raise DataError(f"{where} ({content!r}): normalized must be false beside a normalizer")
        if content in special or content in added:
            raise DataError(f"{where}: token {content!r} is given twice; keep one")
        (special if entry.get("special") else added)[content] = token_id
        names = [name for name in ("lstrip", "rstrip", "single_word") if entry.get(name)]
        flags[content] = TokenFlags.from_names(names)
    return special, added, flags


def _rules(value: Mapping[str, Any]) -> tuple[TextRules, bool]:
    """The text rules, and whether words are split."""
    steps = steps_of(value.get("normalizer"), "normalizers")
    before = steps_of(value.get("pre_tokenizer"), "pretokenizers")
    has_prepend = _PREPEND in steps
    has_replace = _REPLACE in steps
    if steps != [s for s in (_PREPEND, _REPLACE) if s in steps] and steps != [_REPLACE, _PREPEND]:
        raise DataError(
            f"normalizer {types_of(steps)} is not supported; known: Prepend('{SPACE}') and "
            f"Replace(' ' by '{SPACE}')"
        )
    types = [step.get("type") for step in before]
    if types == ["Metaspace"] and not steps:
        return _metaspace(before[0])
    is_idle = types == ["Split"] and before[0].get("pattern") == {"String": " "}
    if has_replace and (not before or is_idle):
        return TextRules(prefix="always" if has_prepend else "none"), False
    raise DataError(
        f"normalizer {types_of(steps)} with pre_tokenizer {types_of(before)} is not supported; "
        "known: [Prepend, Replace] with none, [Replace] with none or Split(' '), none with "
        "Metaspace"
    )


def _metaspace(step: dict[str, Any]) -> tuple[TextRules, bool]:
    if step.get("replacement") != SPACE:
        raise DataError(f"Metaspace: replacement={step.get('replacement')!r:.60} must be {SPACE!r}")
    scheme = step.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if step.get("add_prefix_space", True) else "never"
    known: dict[str, tuple[Prefix, PrefixAt]] = {
        "always": ("missing", "segments"),
        "first": ("missing", "start"),
        "never": ("none", "segments"),
    }
    if scheme not in known:
        raise DataError(
            f"Metaspace: prepend_scheme={scheme!r:.60} is not one of {', '.join(known)}"
        )
    split = step.get("split", True)
    if not is_bool.is_right(split):
        raise DataError(f"Metaspace: split={split!r:.60} must be true or false")
    prefix, prefix_at = known[scheme]
    return TextRules(prefix=prefix, prefix_at=prefix_at), split


def _check_decoder(value: Any) -> None:
    steps = steps_of(value, "decoders")
    if any(step.get("type") not in _DECODERS for step in steps):
        raise DataError(
            f"decoder {types_of(steps)} is not supported; known: {', '.join(sorted(_DECODERS))}"
        )


# ---- writing ----


def to_huggingface(tokenizer: SentencePieceTokenizer) -> str:
    """tokenizer.json that Hugging Face's `tokenizers` loads to the same ids.

    Scores become merges in their order. Of several ways to join one piece the one with the longest
    left part comes first, where SentencePiece takes the leftmost in the text: that shows only where
    two of them overlap in a text, which no trained vocabulary lets happen.

    Raises:
        DataError: the vocabulary or its text rules have no such form; says why.
    """
    vocabulary, rules = tokenizer.vocabulary, tokenizer.rules
    _check_writable(vocabulary, rules)
    vocab: dict[str, int] = {}
    for token_id, piece in enumerate(vocabulary.pieces):
        if piece is not None and vocab.setdefault(piece, token_id) != token_id:
            raise _no_form(f"ids {vocab[piece]} and {token_id} are both {piece!r}")
    specials = tokenizer.special_tokens
    names = {**specials, **tokenizer.added_tokens}
    for symbol in vocabulary.user_defined:
        names[symbol] = vocabulary.id_of[symbol]
    for name, token_id in names.items():
        if vocab.setdefault(name, token_id) != token_id:
            raise _no_form(f"special token {name!r} is spelt like piece {vocab[name]}")
    flags = {name: flags.names() for name, flags in tokenizer.token_flags.items()}
    added = [
        {
            "id": token_id,
            "content": name,
            **{flag: flag in flags.get(name, ()) for flag in ("single_word", "lstrip", "rstrip")},
            "normalized": name in vocabulary.user_defined,
            "special": name in specials,
        }
        for name, token_id in sorted(names.items(), key=lambda item: item[1])
    ]
    unknown_id = vocabulary.unknown_id
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **_pipeline(rules, split_words=tokenizer.split_words),
        "post_processor": write_post_processor(
            tokenizer.template, {token_id: name for name, token_id in names.items()}
        ),
        "decoder": _decoder(rules),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown_id is None else vocabulary.piece(unknown_id),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": vocabulary.fuse_unknown,
            "byte_fallback": bool(vocabulary.byte_ids),
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [list(pair) for pair in _merges(vocabulary)],
        },
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _check_writable(vocabulary: Vocabulary, rules: TextRules) -> None:
    if rules.charsmap or rules.remove_extra_whitespaces or rules.is_suffix:
        raise _no_form("its text rules replace characters, remove spaces or add one behind")
    if not rules.escape_whitespaces or (rules.prefix == "always" and rules.prefix_at == "start"):
        raise _no_form("its text rules treat spaces in a way that Hugging Face's do not")
    if vocabulary.user_defined and rules.prefix != "none":
        raise _no_form("it has user-defined symbols and puts a space in front of text")
    if unused := vocabulary.ids_of(PieceType.UNUSED):
        raise _no_form(f"piece {unused[0]} is of type UNUSED")


def _no_form(why: str) -> DataError:
    return DataError(f"this vocabulary has no Hugging Face form: {why}; write it as 'lmworks'")


def _merges(vocabulary: Vocabulary) -> Iterable[tuple[str, str]]:
    if vocabulary.merges is not None:
        return [(vocabulary.piece(a), vocabulary.piece(b)) for a, b in vocabulary.merges]
    assert vocabulary.scores is not None, "a vocabulary has either"
    normal = {p: i for p, i in vocabulary.id_of.items() if vocabulary.types[i] == PieceType.NORMAL}
    joined = []
    for piece, token_id in normal.items():
        if missing := [char for char in piece if char not in normal]:
            raise _no_form(f"piece {token_id} holds {missing[0]!r}, which is no piece itself")
        splits = [(piece[:i], piece[i:]) for i in range(len(piece) - 1, 0, -1)]
        splits = [(a, b) for a, b in splits if a in normal and b in normal]
        if splits:
            joined.append((-vocabulary.scores[token_id], token_id, splits))
    joined.sort(key=lambda item: item[:2])
    for (score, first, _), (next_score, second, _) in pairwise(joined):
        if score == next_score:
            raise _no_form(f"pieces {first} and {second} have the same score, {-score}")
    return [pair for _, _, splits in joined for pair in splits]


def _pipeline(rules: TextRules, *, split_words: bool) -> dict[str, Any]:
    if rules.prefix == "missing" or split_words:
        schemes = {("missing", "segments"): "always", ("missing", "start"): "first"}
        metaspace = {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": schemes.get((rules.prefix, rules.prefix_at), "never"),
            "split": split_words,
        }
        return {"normalizer": None, "pre_tokenizer": metaspace}
    if rules.prefix == "none":
        return {"normalizer": _REPLACE, "pre_tokenizer": None}
    sequence = {"type": "Sequence", "normalizers": [_PREPEND, _REPLACE]}
    return {"normalizer": sequence, "pre_tokenizer": None}


def _decoder(rules: TextRules) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if rules.prefix != "none":
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}
