"""SentencePiece .model files: the protobuf message ModelProto, read and written without protobuf.

Only the fields that decide ids and text are read (sentencepiece_model.proto); unknown fields are
passed over, as protobuf does. A message is a row of fields: a varint of number * 8 + wire type,
then a varint (0), 8 bytes (1), a varint length and that many bytes (2), or 4 bytes (5).
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from lmworks.base.errors import DataError
from lmworks.tokenizer.sentencepiece_text import TextRules
from lmworks.tokenizer.sentencepiece_vocabulary import PieceType, Vocabulary

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_TYPES: Final = {1: "Unigram", 2: "BPE", 3: "Word", 4: "Char"}
_BPE: Final = 2
_MAX_VARINT_BYTES: Final = 10

Value = int | bytes


class Model(NamedTuple):
    """What a .model file says."""

    vocabulary: Vocabulary
    rules: TextRules
    special_tokens: Mapping[str, int]
    unknown_text: str


def parse(data: bytes) -> Model:
    """The model in the bytes of a file; DataError says what is wrong."""
    pieces: list[bytes] = []
    specs: dict[int, bytes] = {}
    for number, value in _fields(data, "ModelProto"):
        if number == 1:
            pieces.append(_as_bytes(value, "pieces"))
        elif number in (2, 3, 5):
            # A message that comes in parts is their concatenation.
            specs[number] = specs.get(number, b"") + _as_bytes(value, f"field {number}")
    if not pieces:
        raise DataError("not a SentencePiece model: it has no pieces")
    trainer = _message(specs.get(2, b""), "trainer_spec")
    kind = trainer.get(3, 1)
    if kind != _BPE:
        name = _MODEL_TYPES.get(kind) if isinstance(kind, int) else None
        raise DataError(f"the model is of type {name or kind!r}; only BPE models can be read")
    vocabulary = _vocabulary(pieces, has_bytes=_flag(trainer, 35, "byte_fallback", False))
    if vocabulary.unknown_id is None:
        raise DataError("no piece is of type UNKNOWN; a SentencePiece model has one")
    special = vocabulary.ids_of(PieceType.UNKNOWN, PieceType.CONTROL)
    unknown_text = trainer.get(44)
    return Model(
        vocabulary,
        _rules(specs, trainer, vocabulary),
        {vocabulary.piece(i): i for i in special},
        " \u2047 " if unknown_text is None else _text(unknown_text, "unk_surface"),
    )


def serialize(model: Model) -> bytes:
    """The bytes of a .model file; DataError when it cannot say what this model is."""
    vocabulary, rules = model.vocabulary, model.rules
    if vocabulary.scores is None or rules.prefix == "missing" or rules.prefix_at != "segments":
        raise DataError(
            "this vocabulary has no .model form: it joins by a list of merges or treats spaces in "
            "a way of its own; write it as 'lmworks' or 'hf'"
        )
    parts = []
    for token_id, kind in enumerate(vocabulary.types):
        piece = vocabulary.pieces[token_id]
        if piece is None:
            raise DataError(f"this vocabulary has no .model form: id {token_id} is unused")
        score = struct.pack("<f", vocabulary.scores[token_id])
        parts.append(
            _field(1, _field(1, piece.encode("utf-8")) + b"\x15" + score + _field(3, int(kind)))
        )
    trainer = [
        _field(3, _BPE),
        _field(4, len(vocabulary.pieces)),
        _field(24, int(rules.is_suffix)),
        _field(35, int(bool(vocabulary.byte_ids))),
        _field(44, model.unknown_text.encode("utf-8")),
    ]
    if vocabulary.unknown_id is not None:
        trainer.append(_field(40, vocabulary.unknown_id))
        trainer.append(_field(45, vocabulary.piece(vocabulary.unknown_id).encode("utf-8")))
    normalizer = [
        _field(1, b"identity" if not rules.charsmap else b"user_defined"),
        _field(2, rules.charsmap),
        _field(3, int(rules.prefix == "always")),
        _field(4, int(rules.remove_extra_whitespaces)),
        _field(5, int(rules.escape_whitespaces)),
    ]
    return b"".join([*parts, _field(2, b"".join(trainer)), _field(3, b"".join(normalizer))])


# ---- the parts of the message ----


def _vocabulary(messages: list[bytes], *, has_bytes: bool) -> Vocabulary:
    pieces, types, scores = [], [], []
    for token_id, message in enumerate(messages):
        where = f"piece {token_id}"
        fields = _message(message, where)
        number = fields.get(3, 1)
        if not isinstance(number, int) or not 1 <= number <= len(PieceType):
            raise DataError(f"{where} is of type {number!r}; types are 1 to 6")
        kind = PieceType(number)
        if kind == PieceType.BYTE and not has_bytes:
            raise DataError(f"{where} is of type BYTE, but the model has no byte_fallback")
        score = fields.get(2, struct.pack("<f", 0.0))
        if not isinstance(score, bytes) or len(score) != 4:
            raise DataError(f"{where} has a score that is no 32-bit number")
        pieces.append(_text(fields.get(1, b""), where))
        types.append(kind)
        scores.append(struct.unpack("<f", score)[0])
    if has_bytes and PieceType.BYTE not in types:
        raise DataError("the model has byte_fallback but no piece of type BYTE")
    return Vocabulary(pieces=tuple(pieces), types=tuple(types), scores=tuple(scores))


def _rules(
    specs: Mapping[int, bytes], trainer: Mapping[int, Value], vocabulary: Vocabulary
) -> TextRules:
    normalizer = _message(specs.get(3, b""), "normalizer_spec")
    if _message(specs.get(5, b""), "denormalizer_spec").get(2):
        raise DataError("the model has a denormalizer, which is not supported")
    return TextRules(
        charsmap=_as_bytes(normalizer.get(2, b""), "normalizer_spec.precompiled_charsmap"),
        prefix="always" if _flag(normalizer, 3, "add_dummy_prefix", True) else "none",
        is_suffix=_flag(trainer, 24, "treat_whitespace_as_suffix", False),
        remove_extra_whitespaces=_flag(normalizer, 4, "remove_extra_whitespaces", True),
        escape_whitespaces=_flag(normalizer, 5, "escape_whitespaces", True),
        user_defined=vocabulary.user_defined,
    )


def _flag(fields: Mapping[int, Value], number: int, name: str, default: bool) -> bool:
    value = fields.get(number, int(default))
    if not isinstance(value, int):
        raise DataError(f"{name} must be true or false, got {value!r:.40}")
    return bool(value)


def _text(value: Value, where: str) -> str:
    try:
        return _as_bytes(value, where).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where}: {value!r:.60} is not UTF-8") from None


def _as_bytes(value: Value, where: str) -> bytes:
    if not isinstance(value, bytes):
        raise DataError(f"not a SentencePiece model: {where} is a number")
    return value


# ---- the wire format ----


def _message(data: bytes, where: str) -> dict[int, Value]:
    """The fields of a message; of one that is given twice the last counts."""
    return dict(_fields(data, where))


def _fields(data: bytes, where: str) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, where)
        wire_type = tag & 7
        if wire_type == _VARINT:
            number, at = _varint(data, at, where)
            yield tag >> 3, number
            continue
        if wire_type == _BYTES:
            size, at = _varint(data, at, where)
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise DataError(f"not a SentencePiece model: {where} has wire type {wire_type}")
        if size > len(data) - at:
            raise DataError(
                f"not a SentencePiece model, or cut short: {where} has a field of {size} bytes "
                f"where {len(data) - at} are left"
            )
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + i + 1
    raise DataError(f"not a SentencePiece model, or cut short: {where} ends inside a number")


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return _number(number << 3 | _VARINT) + _number(value)
    return _number(number << 3 | _BYTES) + _number(len(value)) + value


def _number(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
