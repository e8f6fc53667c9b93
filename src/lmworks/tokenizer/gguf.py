"""Vocabularies in GGUF files, as llama.cpp stores them: byte-level BPE and SentencePiece.

    tokenizer = gguf.load("model.gguf")

The pairs `tokenizer.ggml.*` hold the tokens, their types, and either merges and the name of a
pre-tokenizer ("gpt2") or scores ("llama"). A whole `tokenizer.huggingface.json`, where there is
one, goes before them. Only the start of the file is read (gguf_metadata.py). What llama.cpp decides
by the name of the pre-tokenizer is decided here in the same way; GGUF says nothing of normalizers,
so Qwen's NFC is not applied, as in llama.cpp.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from lmworks.base.errors import DataError
from lmworks.tokenizer import gguf_metadata, huggingface
from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte_letters import from_letters, to_letters
from lmworks.tokenizer.gguf_metadata import Value
from lmworks.tokenizer.preprocess import Unknown
from lmworks.tokenizer.sentencepiece import SentencePieceTokenizer
from lmworks.tokenizer.sentencepiece_text import SPACE, TextRules
from lmworks.tokenizer.sentencepiece_vocabulary import PieceType, Vocabulary
from lmworks.tokenizer.template import Template, TemplateItem
from lmworks.tokenizer.token_table import TokenTable

_GGML: Final = "tokenizer.ggml."
_HUGGING_FACE: Final = "tokenizer.huggingface.json"
_TEMPLATE: Final = "tokenizer.chat_template"
_SPECIAL_ID: Final = re.compile(r"tokenizer\.ggml\.(\w+)_token_id")


class Pre(NamedTuple):
    """What the name of a pre-tokenizer stands for."""

    pattern: str
    ignore_merges: bool = False
    has_bos: bool = False


def _named(pattern: str, names: str, **options: bool) -> dict[str, Pre]:
    return {name: Pre(pattern, **options) for name in names.split()}


# llama.cpp, src/llama-vocab.cpp: names with the expressions that they stand for.
PRE_TOKENIZERS: Final[Mapping[str, Pre]] = {
    **_named(
        "gpt2",
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat roberta-bpe mpt olmo jais "
        "trillion granite-docling exaone4",
    ),
    **_named("smollm", "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    **_named(
        "llama3",
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        ignore_merges=True,
        has_bos=True,
    ),
    **_named("llama3", "dbrx smaug-bpe glm4 chatglm-bpe"),
    **_named("qwen2", "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2"),
    **_named("qwen35", "qwen35"),
    **_named("o200k", "gpt-4o llama4 minimax-m2"),
    **_named("deepseek3", "deepseek-v3 hunyuan-dense joyai-llm"),
    **_named("kimi2", "kimi-k2"),
    **_named("tekken", "tekken", ignore_merges=True, has_bos=True),
}


@dataclass(frozen=True)
class GgufVocabulary:
    """What a GGUF file says about its vocabulary."""

    tokenizer: Tokenizer
    special_ids: Mapping[str, int]
    """Ids by their part: "bos", "eos", "padding", "unknown", "eot", ..."""
    chat_template: str | None
    """Jinja text that turns messages into a prompt."""


def load(path: str | Path) -> Tokenizer:
    """The tokenizer in a GGUF file, with the template that its BOS and EOS settings ask for."""
    return read(path).tokenizer


def read(path: str | Path) -> GgufVocabulary:
    """The tokenizer, the special ids and the chat template in a GGUF file."""
    pairs = gguf_metadata.read(path)
    try:
        return from_pairs(pairs)
    except DataError as err:
        raise DataError(f"{path}: {err}") from None


def from_pairs(pairs: Mapping[str, Value]) -> GgufVocabulary:
    """The same from the key-value pairs of a file."""
    special_ids = _special_ids(pairs)
    whole = _optional(pairs, _HUGGING_FACE, str, "text")
    kind = pairs.get(_GGML + "model")
    if whole is not None:
        tokenizer = _from_huggingface(whole)
    elif kind == "gpt2":
        tokenizer = _byte_level(pairs)
    elif kind == "llama":
        tokenizer = _sentencepiece(pairs, special_ids)
    elif kind is None:
        raise DataError(f"no {_GGML}model: the file has no vocabulary")
    else:
        raise DataError(f"{_GGML}model={kind!r:.60} is not supported; known: gpt2, llama")
    if whole is None:
        tokenizer.template = _template(pairs, special_ids, kind)
    return GgufVocabulary(tokenizer, special_ids, _optional(pairs, _TEMPLATE, str, "text"))


def _from_huggingface(text: str) -> Tokenizer:
    from lmworks.tokenizer.formats import parse_json

    try:
        return huggingface.from_json(parse_json(text.encode("utf-8", "surrogateescape")))
    except DataError as err:
        raise DataError(f"{_HUGGING_FACE}: {err}") from None


# ---- the two kinds ----


def _byte_level(pairs: Mapping[str, Value]) -> BPETokenizer:
    name = _required(pairs, "pre", str, "text")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise DataError(f"{_GGML}pre={name!r:.60} is not a known pre-tokenizer; known: {known}")
    texts, types = _tokens(pairs)
    tokens: list[bytes | None] = [None] * len(texts)
    special: dict[str, int] = {}
    added: dict[str, int] = {}
    for token_id, (text, kind) in enumerate(zip(texts, types, strict=True)):
        if kind in (PieceType.CONTROL, PieceType.UNKNOWN):
            _put_new(special, text, token_id)
        elif kind == PieceType.USER_DEFINED:
            _put_new(added, text, token_id)
        elif kind != PieceType.UNUSED:
            tokens[token_id] = from_letters(text, f"token {token_id}")
    while tokens and tokens[-1] is None:
        tokens.pop()
    table = TokenTable.of(tokens)
    id_of = {texts[i]: i for i, token in enumerate(tokens) if token is not None}
    entries = _list(pairs, "merges", str, "text")
    # llama.cpp leaves out what has no token.
    unknown = Unknown() if table.missing_bytes() else None
    return BPETokenizer(
        table,
        [_merge(entry, rank, id_of) for rank, entry in enumerate(entries)],
        pattern=pre.pattern,
        special_tokens=special,
        added_tokens=added,
        ignore_merges=pre.ignore_merges,
        unknown=unknown,
    )


def _merge(entry: str, rank: int, id_of: Mapping[str, int]) -> tuple[int, int]:
    ids = [id_of.get(part) for part in entry.split(" ")]
    if len(ids) != 2 or ids[0] is None or ids[1] is None:
        from_letters(entry.replace(" ", ""), f"merge {rank}")
        raise DataError(f"merge {rank}={entry!r:.60} is not two tokens with a space between")
    return ids[0], ids[1]


def _sentencepiece(
    pairs: Mapping[str, Value], special_ids: Mapping[str, int]
) -> SentencePieceTokenizer:
    pieces, types = _tokens(pairs)
    scores = _list(pairs, "scores", float, "numbers")
    unknown_id = special_ids.get("unknown")
    if PieceType.UNKNOWN not in types and unknown_id is not None:
        # Some converters write the unknown token as a control token.
        types[unknown_id] = PieceType.UNKNOWN
    # llama.cpp looks for these in the text as it is, SentencePiece in pieces' spelling.
    for token_id, kind in enumerate(types):
        if kind == PieceType.USER_DEFINED:
            pieces[token_id] = pieces[token_id].replace(" ", SPACE)
    vocabulary = Vocabulary(pieces=tuple(pieces), types=tuple(types), scores=tuple(scores))
    key = _GGML + "precompiled_charsmap"
    numbers = _optional(pairs, key, list, "a list of bytes") or []
    if not all(isinstance(number, int) and 0 <= number < 256 for number in numbers):
        raise DataError(f"{key} must be a list of bytes")
    special = vocabulary.ids_of(PieceType.UNKNOWN, PieceType.CONTROL)
    return SentencePieceTokenizer(
        vocabulary,
        TextRules(
            charsmap=bytes(numbers),
            prefix="always" if _flag(pairs, "add_space_prefix", True) else "none",
            remove_extra_whitespaces=_flag(pairs, "remove_extra_whitespaces", False),
            user_defined=vocabulary.user_defined,
        ),
        special_tokens={vocabulary.piece(i): i for i in special},
    )


def _put_new(names: dict[str, int], name: str, token_id: int) -> None:
    if names.setdefault(name, token_id) != token_id:
        raise DataError(f"tokens {names[name]} and {token_id} are both {name!r:.60}; keep one")


def _tokens(pairs: Mapping[str, Value]) -> tuple[list[str], list[PieceType]]:
    texts = _list(pairs, "tokens", str, "text")
    if _GGML + "token_type" not in pairs:
        return texts, [PieceType.NORMAL] * len(texts)
    numbers = _list(pairs, "token_type", int, "whole numbers")
    if len(numbers) != len(texts):
        raise DataError(f"{_GGML}token_type has {len(numbers)} items for {len(texts)} tokens")
    kinds = {int(kind): kind for kind in PieceType}
    try:
        return texts, [kinds[number] for number in numbers]
    except KeyError:
        token_id, number = next((i, n) for i, n in enumerate(numbers) if n not in kinds)
        raise DataError(f"token {token_id} is of type {number}; types are 1 to 6") from None


def _special_ids(pairs: Mapping[str, Value]) -> dict[str, int]:
    ids: dict[str, int] = {}
    tokens = pairs.get(_GGML + "tokens")
    for key, value in pairs.items():
        match = _SPECIAL_ID.fullmatch(key)
        if match is None:
            continue
        size = len(tokens) if isinstance(tokens, list) else 0
        if not isinstance(value, int) or not 0 <= value < size:
            raise DataError(f"{key}={value!r:.60} is not the id of one of {size} tokens")
        ids[match.group(1)] = value
    return ids


def _template(
    pairs: Mapping[str, Value], special_ids: Mapping[str, int], kind: Any
) -> Template | None:
    pre = PRE_TOKENIZERS.get(str(pairs.get(_GGML + "pre")))
    has_bos = kind == "llama" or (pre is not None and pre.has_bos)
    bos_id = special_ids.get("bos") if _flag(pairs, "add_bos_token", has_bos) else None
    eos_id = special_ids.get("eos") if _flag(pairs, "add_eos_token", False) else None
    if bos_id is None and eos_id is None:
        return None
    return Template.around(bos_id=bos_id, eos_id=eos_id)


# ---- reading single pairs ----


def _optional(pairs: Mapping[str, Value], key: str, kind: type, wanted: str) -> Any:
    value = pairs.get(key)
    if value is not None and not isinstance(value, kind):
        raise DataError(f"{key} must be {wanted}, got {value!r:.60}")
    return value


def _required(pairs: Mapping[str, Value], name: str, kind: type, wanted: str) -> Any:
    value = _optional(pairs, _GGML + name, kind, wanted)
    if value is None:
        raise DataError(f"{_GGML}{name} is missing; it must be {wanted}")
    return value


def _list(pairs: Mapping[str, Value], name: str, kind: type, wanted: str) -> list[Any]:
    values: list[Any] = _required(pairs, name, list, f"a list of {wanted}")
    if not all(isinstance(v, kind) and not isinstance(v, bool) for v in values[:1]):
        raise DataError(f"{_GGML}{name} must be a list of {wanted}, got {values[0]!r:.60}")
    return values


def _flag(pairs: Mapping[str, Value], name: str, default: bool) -> bool:
    value = pairs.get(_GGML + name, default)
    if not isinstance(value, bool):
        raise DataError(f"{_GGML}{name} must be true or false, got {value!r:.60}")
    return value


# ---- writing ----


def to_pairs(
    tokenizer: Tokenizer,
    *,
    special_ids: Mapping[str, int] | None = None,
    chat_template: str | None = None,
) -> dict[str, Value]:
    """The key-value pairs `tokenizer.*` of a vocabulary.

    Args:
        tokenizer: byte-level BPE or SentencePiece.
        special_ids: ids by their part, "bos", "eos", ...; those that the template puts at the
            ends are taken from it.
        chat_template: Jinja text.

    Raises:
        DataError: GGUF has no form for this vocabulary; says why.
    """
    has_bos, has_eos, ids = _ends(tokenizer.template, special_ids or {})
    if isinstance(tokenizer, BPETokenizer):
        pairs = _byte_level_pairs(tokenizer)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        pairs = _sentencepiece_pairs(tokenizer)
    else:
        raise _no_form(f"it is of kind {tokenizer.kind}")
    pairs[_GGML + "add_bos_token"] = has_bos
    pairs[_GGML + "add_eos_token"] = has_eos
    pairs |= {f"{_GGML}{part}_token_id": token_id for part, token_id in ids.items()}
    if chat_template is not None:
        pairs[_TEMPLATE] = chat_template
    return pairs


def save(
    tokenizer: Tokenizer,
    path: str | Path,
    *,
    architecture: str = "llama",
    special_ids: Mapping[str, int] | None = None,
    chat_template: str | None = None,
) -> None:
    """Write a GGUF file of the vocabulary alone, atomically; see `to_pairs`."""
    pairs = to_pairs(tokenizer, special_ids=special_ids, chat_template=chat_template)
    gguf_metadata.write(path, {"general.architecture": architecture, **pairs})


def _ends(
    template: Template | None, special_ids: Mapping[str, int]
) -> tuple[bool, bool, dict[str, int]]:
    """Whether BOS and EOS are added, and all special ids."""
    ids = dict(special_ids)
    if template is None:
        return False, False, ids
    sources: Sequence[Any] = [item.source for item in template.single]
    at = sources.index("A")
    bos, eos = sources[:at], sources[at + 1 :]
    if len(bos) > 1 or len(eos) > 1:
        raise _no_form(f"its template puts more than one token on a side: {sources}")
    for part, found in (("bos", bos), ("eos", eos)):
        if found and ids.setdefault(part, found[0]) != found[0]:
            raise _no_form(f"its template's {part} is {found[0]}, special_ids says {ids[part]}")
    around = Template.around(bos_id=bos[0] if bos else None, eos_id=eos[0] if eos else None)
    if template.single != around.single or template.single == (TemplateItem("A"),):
        raise _no_form("its template is not a token in front, one behind, or both")
    return bool(bos), bool(eos), ids


def _byte_level_pairs(tokenizer: BPETokenizer) -> dict[str, Value]:
    wanted = Pre(tokenizer.pattern, tokenizer.ignore_merges)
    names = [name for name, pre in PRE_TOKENIZERS.items() if pre[:2] == wanted[:2]]
    if not names:
        raise _no_form(
            f"llama.cpp has no pre-tokenizer of pattern {tokenizer.pattern!r:.60} with "
            f"ignore_merges={tokenizer.ignore_merges}"
        )
    if tokenizer.normalizer is not None or tokenizer.add_prefix_space or tokenizer.piece_steps:
        raise _no_form("it has a normalizer, puts a space in front or cuts text by several steps")
    if tokenizer.unknown not in (None, Unknown()):
        raise _no_form("it has a token for unknown bytes")
    size = tokenizer.vocab_size
    texts, types = [f"[UNUSED{i}]" for i in range(size)], [PieceType.UNUSED] * size
    for token_id, token in enumerate(tokenizer.tokens):
        if token is not None:
            texts[token_id], types[token_id] = to_letters(token), PieceType.NORMAL
    for names_of, kind in (
        (tokenizer.special_tokens, PieceType.CONTROL),
        (tokenizer.added_tokens, PieceType.USER_DEFINED),
    ):
        for name, token_id in names_of.items():
            texts[token_id], types[token_id] = name, kind
    letters = [[to_letters(part) for part in pair] for pair in tokenizer.merged_bytes]
    return {
        _GGML + "model": "gpt2",
        _GGML + "pre": names[0],
        _GGML + "tokens": texts,
        _GGML + "token_type": [int(kind) for kind in types],
        _GGML + "merges": [" ".join(pair) for pair in letters],
    }


def _sentencepiece_pairs(tokenizer: SentencePieceTokenizer) -> dict[str, Value]:
    vocabulary, rules = tokenizer.vocabulary, tokenizer.rules
    plain = TextRules(
        prefix=rules.prefix,
        remove_extra_whitespaces=rules.remove_extra_whitespaces,
        user_defined=rules.user_defined,
    )
    if vocabulary.scores is None:
        raise _no_form("it joins by a list of merges, not by scores")
    if rules != plain or rules.prefix == "missing" or tokenizer.split_words:
        raise _no_form("its text rules are not those of llama.cpp")
    if tokenizer.added_tokens:
        raise _no_form("it has added tokens")
    pieces = [f"[UNUSED{i}]" if p is None else p for i, p in enumerate(vocabulary.pieces)]
    for token_id in vocabulary.ids_of(PieceType.USER_DEFINED):
        pieces[token_id] = pieces[token_id].replace(SPACE, " ")
    types = [
        PieceType.UNUSED if piece is None else kind
        for piece, kind in zip(vocabulary.pieces, vocabulary.types, strict=True)
    ]
    pairs: dict[str, Value] = {
        _GGML + "model": "llama",
        _GGML + "pre": "default",
        _GGML + "tokens": pieces,
        _GGML + "scores": [float(score) for score in vocabulary.scores],
        _GGML + "token_type": [int(kind) for kind in types],
        _GGML + "add_space_prefix": rules.prefix == "always",
        _GGML + "remove_extra_whitespaces": rules.remove_extra_whitespaces,
    }
    if vocabulary.unknown_id is not None:
        pairs[_GGML + "unknown_token_id"] = vocabulary.unknown_id
    return pairs


def _no_form(why: str) -> DataError:
    return DataError(f"this vocabulary has no GGUF form: {why}; write it as 'lmworks'")
