"""Tokenizer files: our JSON, Hugging Face's (huggingface.py), tiktoken's ranks (tiktoken.py),
SentencePiece models (sentencepiece.py) and GGUF (gguf.py).

`load` tells JSON formats apart by their content. A tiktoken file holds only ranks, so its pattern
and special tokens must be given, or its name: `load_tiktoken`. Files come from strangers: whatever
is in them, the outcome is a tokenizer or a DataError that says what is wrong, where, and what would
be right.
"""

import gc
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lmworks.base.errors import ConfigError, DataError
from lmworks.base.storage import write_bytes
from lmworks.tokenizer import tiktoken
from lmworks.tokenizer.base import FORMAT, VERSION, Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.char import CharTokenizer
from lmworks.tokenizer.schema import (
    Check,
    check_fields,
    is_bool,
    is_id_map,
    is_list_of,
    is_list_of_pairs,
    is_list_of_texts,
    is_string,
    optional,
)
from lmworks.tokenizer.template import Template
from lmworks.tokenizer.word import WordTokenizer

Format = Literal["lmworks", "hf", "tiktoken", "sentencepiece", "gguf"]

_KINDS: dict[str, type[Tokenizer]] = {
    cls.kind: cls for cls in (BPETokenizer, ByteTokenizer, CharTokenizer, WordTokenizer)
}
"""All but SentencePieceTokenizer, imported on use to keep `import lmworks.tokenizer` quick."""
_is_flags = Check(
    "an object of lists of flags",
    lambda v: (
        isinstance(v, dict)
        and all(
            isinstance(names, list) and all(map(is_string.is_right, names)) for names in v.values()
        )
    ),
)
_is_object = Check("an object", lambda v: isinstance(v, dict))
_is_number = Check("a number", lambda v: isinstance(v, int | float) and not isinstance(v, bool))
_FIELDS: dict[str, dict[str, Check]] = {
    "bpe": {
        "pattern": is_string,
        "normalizer": Check(
            "null, 'NFC' or a list of steps", lambda v: v is None or isinstance(v, str | list)
        ),
        "ignore_merges": is_bool,
        "special_tokens": is_id_map,
        "added_tokens": is_id_map,
        "tokens": is_list_of_texts,
        "merges": is_list_of_pairs,
    },
    "byte": {"special_tokens": is_list_of(is_string)},
    "char": {"special_tokens": is_list_of(is_string), "chars": is_string},
    "sentencepiece": {
        "text_rules": _is_object,
        "split_words": is_bool,
        "fuse_unknown": is_bool,
        "unknown_text": is_string,
        "special_tokens": is_id_map,
        "added_tokens": is_id_map,
        "types": is_string,
        "pieces": is_list_of_texts,
        "scores": optional(is_list_of(_is_number)),
        "merges": optional(is_list_of_pairs),
    },
    "word": {
        "pattern": is_string,
        "special_tokens": is_list_of(is_string),
        "words": is_list_of(is_string),
    },
}

_OPTIONAL: dict[str, dict[str, Check]] = {
    "bpe": {
        "token_flags": _is_flags,
        "add_prefix_space": is_bool,
        "piece_steps": Check("a list of steps", lambda v: isinstance(v, list)),
        "unknown": _is_object,
    },
    "sentencepiece": {"token_flags": _is_flags},
}
"""Fields that are left out at their default."""


def load(path: str | Path) -> Tokenizer:
    """The tokenizer in our JSON, a Hugging Face tokenizer.json or a folder with one, .model, .gguf.

    Names that end in .model are SentencePiece models, those in .gguf GGUF files.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    if path.suffix == ".gguf":
        from lmworks.tokenizer import gguf

        return gguf.load(path)
    if path.suffix == ".model":
        from lmworks.tokenizer import sentencepiece

        return sentencepiece.load(path)
    data = _read(path)
    try:
        if not data.lstrip().startswith(b"{"):
            raise DataError(_not_json(data))
        value = parse_json(data)
        if value.get("format") == FORMAT:
            return _from_own(value)
        if "model" in value:
            from lmworks.tokenizer import huggingface

            return huggingface.from_json(value)
        raise DataError(
            f'neither our format ("format": "{FORMAT}") nor a Hugging Face tokenizer.json '
            f'("model": ...); its keys are {", ".join(map(repr, list(value)[:8])) or "none"}'
        )
    except DataError as err:
        raise DataError(f"{path}: {err}") from None


def save(tokenizer: Tokenizer, path: str | Path, *, format: Format = "lmworks") -> None:
    """Write a tokenizer in one of the formats, atomically; DataError when it has no such form."""
    from lmworks.tokenizer import gguf, huggingface, sentencepiece, sentencepiece_huggingface
    from lmworks.tokenizer.sentencepiece import SentencePieceTokenizer

    if format == "lmworks":
        tokenizer.save(path)
    elif format == "gguf":
        gguf.save(tokenizer, path)
    elif format == "sentencepiece" and isinstance(tokenizer, SentencePieceTokenizer):
        sentencepiece.save(tokenizer, path)
    elif format == "hf" and isinstance(tokenizer, SentencePieceTokenizer):
        text = sentencepiece_huggingface.to_huggingface(tokenizer)
        write_bytes(path, text.encode("utf-8"))
    elif format == "hf" and isinstance(tokenizer, BPETokenizer):
        write_bytes(path, huggingface.to_json(tokenizer).encode("utf-8"))
    elif format == "tiktoken" and isinstance(tokenizer, BPETokenizer):
        write_bytes(path, to_tiktoken(tokenizer))
    else:
        raise ConfigError(
            f"a {tokenizer.kind} tokenizer has no {format!r} format; write it as 'lmworks'"
        )


def parse_json(data: bytes) -> dict[str, Any]:
    """A JSON object; DataError for anything else, a repeated key, NaN or absurd nesting."""
    # JSON values hold no cycles, and looking for some takes as long as the parsing.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant
        )
    except UnicodeDecodeError as err:
        raise DataError(f"not UTF-8 at byte {err.start}") from None
    except RecursionError:
        raise DataError("not a tokenizer: JSON nested too deeply") from None
    except DataError:
        raise
    except ValueError as err:
        raise DataError(f"not valid JSON ({err})") from None
    finally:
        if is_collecting:
            gc.enable()
    if not isinstance(value, dict):
        raise DataError(f"expected a JSON object, got {type(value).__name__}")
    return value


# ---- our own format ----


def _class_of(kind: str) -> type[Tokenizer]:
    if kind in _KINDS:
        return _KINDS[kind]
    from lmworks.tokenizer.sentencepiece import SentencePieceTokenizer

    return SentencePieceTokenizer


def _from_own(value: dict[str, Any]) -> Tokenizer:
    version = value.get("version")
    if version != VERSION or isinstance(version, bool):
        raise DataError(f"format version {version!r}; this lmworks reads version {VERSION}")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise DataError(f"kind={kind!r}; known: {', '.join(sorted(_FIELDS))}")
    head = {"format": is_string, "version": Check("a number", lambda v: True), "kind": is_string}
    template = value.pop("template", None)
    extra = {key: check for key, check in _OPTIONAL.get(kind, {}).items() if key in value}
    check_fields(value, {**head, **_FIELDS[kind], **extra})
    tokenizer = _class_of(kind).from_content({k: v for k, v in value.items() if k not in head})
    tokenizer.template = None if template is None else Template.from_json(template)
    return tokenizer


# ---- tiktoken ----


def load_tiktoken(
    path: str | Path, pattern: str, special_tokens: Mapping[str, int] | None = None
) -> BPETokenizer:
    """The vocabulary in a .tiktoken file.

    `pattern` names a pre-tokenizer pattern, or one of OpenAI's encodings ("cl100k_base"), which
    also gives the special tokens.
    """
    try:
        return tiktoken.from_ranks(_read(Path(path)), pattern, special_tokens)
    except DataError as err:
        raise DataError(f"{path}: {err}") from None


def to_tiktoken(tokenizer: BPETokenizer) -> bytes:
    """The rank file's bytes; DataError when ranks alone cannot express this vocabulary."""
    return tiktoken.to_ranks(tokenizer)


# ---- reading ----


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such tokenizer file") from None
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror})") from None


def _not_json(data: bytes) -> str:
    first = data[:200].split(b"\n")[0].split()
    if len(first) == 2 and first[1].isdigit():
        return (
            "looks like a tiktoken rank file, which names neither its pattern nor its special "
            "tokens; read it with load_tiktoken(path, pattern, special_tokens)"
        )
    return "not a tokenizer file: expected a JSON object"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise DataError(f"key {twice!r} is given twice; keep one")
    return value


def _no_constant(text: str) -> None:
    raise DataError(f"{text} is not a JSON number")
