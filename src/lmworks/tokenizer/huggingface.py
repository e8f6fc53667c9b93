"""Hugging Face `tokenizer.json` of byte-level BPE models, read and written.

Vocabulary keys and merges spell each byte as one letter (GPT-2's `bytes_to_unicode`). The pattern
is recognised by its exact expression. What we cannot reproduce exactly is refused by name. Not
applied: `post_processor` templates; our ids are those of `encode(text, add_special_tokens=False)`.
"""

import json
from typing import Any, Final

from lmworks import _text
from lmworks.base.errors import DataError
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.normalize import Normalizer
from lmworks.tokenizer.schema import Check, field, is_int, is_string

# The expressions as Hugging Face's engine (Oniguruma) must read them: there `{1,3}+` repeats.
PATTERNS: Final[dict[str, str]] = {
    **_text.PATTERNS,
    "cl100k": _text.PATTERNS["cl100k"].replace("{1,3}+", "{1,3}"),
}


def _byte_letters() -> list[str]:
    """GPT-2's letter for each byte: itself when printable, else the next one from U+0100 on."""
    letters = []
    num_others = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + num_others))
            num_others += 1
    return letters


_LETTERS: Final = _byte_letters()
_BYTES: Final = {ord(letter): byte for byte, letter in enumerate(_LETTERS)}

is_object = Check("an object", lambda v: isinstance(v, dict))
is_list = Check("a list", lambda v: isinstance(v, list))


# ---- reading ----


def from_json(value: dict[str, Any]) -> BPETokenizer:
    """The tokenizer that a parsed tokenizer.json describes."""
    model = field(value, "model", is_object, "tokenizer.json")
    _check_model(model)
    normalizer = _normalizer(value.get("normalizer"))
    special, added = _added_tokens(value.get("added_tokens") or [], normalizer)
    vocab: dict[str, Any] = field(model, "vocab", is_object, "model")
    tokens = _tokens(vocab, {**special, **added})
    id_of = {token: i for i, token in enumerate(tokens) if token is not None}
    merges = [
        _merge(entry, rank, id_of)
        for rank, entry in enumerate(field(model, "merges", is_list, "model"))
    ]
    return BPETokenizer(
        tokens,
        merges,
        pattern=_pattern(value.get("pre_tokenizer")),
        special_tokens=special,
        added_tokens=added,
        ignore_merges=bool(model.get("ignore_merges", False)),
        normalizer=normalizer,
    )


def _check_model(model: dict[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE":
        raise DataError(f"model.type={model['type']!r}; only byte-level 'BPE' can be read")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise DataError(f"model.{key}={model[key]!r} is not supported; it must be unset")
    if not isinstance(model.get("ignore_merges", False), bool):
        raise DataError(f"model.ignore_merges={model['ignore_merges']!r} must be true or false")


def _tokens(vocab: dict[str, Any], added: dict[str, int]) -> list[bytes | None]:
    """Bytes by id, without the added tokens that the vocabulary repeats: no merge makes them."""
    by_id: dict[int, bytes] = {}
    for key, token_id in vocab.items():
        if not is_int.is_right(token_id) or not 0 <= token_id < _text.MAX_TOKENS:
            raise DataError(
                f"model.vocab[{key!r}]={token_id!r} is not an id in 0..{_text.MAX_TOKENS - 1}"
            )
        if key in added:
            if added[key] != token_id:
                raise DataError(
                    f"token {key!r} has id {token_id} in model.vocab, {added[key]} in added_tokens"
                )
            continue
        if token_id in by_id:
            raise DataError(
                f"model.vocab: id {token_id} is given twice, the second time to {key!r}"
            )
        by_id[token_id] = _spelt(key, "model.vocab")
    return [by_id.get(i) for i in range(max(by_id, default=-1) + 1)]


def _spelt(key: str, where: str) -> bytes:
    try:
        return bytes([_BYTES[ord(letter)] for letter in key])
    except KeyError as err:
        raise DataError(
            f"{where}: {key!r} holds {chr(err.args[0])!r}, which spells no byte; "
            "only byte-level vocabularies can be read"
        ) from None


def _merge(entry: Any, rank: int, id_of: dict[bytes, int]) -> tuple[int, int]:
    """Both spellings: ["a", "b"] and "a b"."""
    parts = entry.split(" ") if isinstance(entry, str) else entry
    is_pair = isinstance(parts, list) and len(parts) == 2
    if not is_pair or not all(isinstance(p, str) and p for p in parts):
        raise DataError(f'model.merges[{rank}]={entry!r} is neither ["a", "b"] nor "a b"')
    ids: list[int] = []
    for part in parts:
        token_id = id_of.get(_spelt(part, f"model.merges[{rank}]"))
        if token_id is None:
            raise DataError(f"model.merges[{rank}]={entry!r}: {part!r} is not in model.vocab")
        ids.append(token_id)
    return ids[0], ids[1]


def _added_tokens(
    entries: Any, normalizer: Normalizer | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Special and other added tokens; every flag that changes how text matches must be off."""
    if not isinstance(entries, list):
        raise DataError(f"added_tokens must be a list, got {type(entries).__name__}")
    special: dict[str, int] = {}
    added: dict[str, int] = {}
    for i, entry in enumerate(entries):
        where = f"added_tokens[{i}]"
        content = field(entry, "content", is_string, where)
        token_id = field(entry, "id", is_int, where)
        for flag in ("lstrip", "rstrip", "single_word"):
            if entry.get(flag):
                raise DataError(f"{where} ({content!r}): {flag} is not supported; it must be false")
        if normalizer and entry.get("normalized"):
            raise DataError(f"{where} ({content!r}): normalized must be false beside a normalizer")
        if content in special or content in added:
            raise DataError(f"{where}: token {content!r} is given twice; keep one")
        (special if entry.get("special") else added)[content] = token_id
    return special, added


def _normalizer(value: Any) -> Normalizer | None:
    steps = _steps(value, "normalizers")
    if not steps:
        return None
    if [step.get("type") for step in steps] == ["NFC"]:
        return Normalizer.from_json("NFC")
    raise DataError(f"normalizer {_types(steps)} is not supported; known: none, NFC")


def _pattern(value: Any) -> str:
    steps = _steps(value, "pretokenizers")
    types = [step.get("type") for step in steps]
    last = steps[-1] if steps else {}
    if not types or types[-1] != "ByteLevel":
        raise DataError(f"pre_tokenizer {_types(steps)} is not supported; it must end in ByteLevel")
    if last.get("add_prefix_space"):
        raise DataError("pre_tokenizer: add_prefix_space is not supported; it must be false")
    use_regex = last.get("use_regex", True) is not False
    if types == ["ByteLevel"] and use_regex:
        return "gpt2"
    if types == ["Digits", "ByteLevel"] and use_regex and steps[0].get("individual_digits"):
        return "smollm"
    if types == ["Split", "ByteLevel"] and not use_regex:
        return _split_pattern(steps[0])
    raise DataError(
        f"pre_tokenizer {_types(steps)} with use_regex={use_regex} is not supported; known: "
        "ByteLevel, [Digits(individual), ByteLevel], [Split(expression), ByteLevel(no regex)]"
    )


def _split_pattern(step: dict[str, Any]) -> str:
    pattern = step.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if step.get("behavior") != "Isolated" or step.get("invert"):
        raise DataError("pre_tokenizer: Split must be Isolated and not inverted")
    for name, known in PATTERNS.items():
        if expression == known:
            return name
    raise DataError(
        f"pre_tokenizer: unknown expression {expression!r}; known are those of "
        f"{', '.join(PATTERNS)}, letter by letter"
    )


def _steps(value: Any, key: str) -> list[dict[str, Any]]:
    """The components of a pipeline part that may be null, one component or a Sequence."""
    if value is None:
        return []
    if isinstance(value, dict) and value.get("type") == "Sequence":
        value = value.get(key)
    steps = value if isinstance(value, list) else [value]
    if not all(isinstance(step, dict) for step in steps):
        raise DataError(f"{key}: expected objects with a type, got {value!r:.60}")
    return steps


def _types(steps: list[dict[str, Any]]) -> str:
    return str([step.get("type") for step in steps])


# ---- writing ----


def to_json(tokenizer: BPETokenizer) -> str:
    """tokenizer.json that Hugging Face's `tokenizers` loads to the same ids."""
    vocab = {
        "".join(_LETTERS[b] for b in token): i
        for i, token in enumerate(tokenizer.tokens)
        if token is not None
    }
    merges = [
        ["".join(_LETTERS[b] for b in part) for part in pair] for pair in tokenizer.merged_bytes
    ]
    specials = tokenizer.special_tokens
    names = sorted({**specials, **tokenizer.added_tokens}.items(), key=lambda item: item[1])
    for name, token_id in names:
        # In the vocabulary too: otherwise `tokenizers` would number it anew.
        if vocab.setdefault(name, token_id) != token_id:
            raise DataError(
                f"special token {name!r} has no Hugging Face form: it is spelt like token "
                f"{vocab[name]} of the vocabulary"
            )
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": name in specials,
            }
            for name, token_id in names
        ],
        "normalizer": {"type": "NFC"} if tokenizer.normalizer else None,
        "pre_tokenizer": _pre_tokenizer(tokenizer.pattern),
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": tokenizer.ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _pre_tokenizer(pattern: str) -> dict[str, Any]:
    if pattern == "gpt2":
        return _byte_level(use_regex=True)
    if pattern == "smollm":
        first: dict[str, Any] = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [first, _byte_level(use_regex=True)]}
    first = {
        "type": "Split",
        "pattern": {"Regex": PATTERNS[pattern]},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [first, _byte_level(use_regex=False)]}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }
