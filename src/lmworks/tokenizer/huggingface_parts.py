"""Parts of a Hugging Face tokenizer.json around the model, read and written; checks of the model.

Normalizer, pre-tokenizer (huggingface_pieces.py), post-processor and decoder are each null, one
component or a Sequence of them. What would not give exactly the ids of `tokenizers` is refused by
name.
"""

from collections.abc import Mapping
from typing import Any, Final

from lmworks import _text
from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer.normalize import Normalizer
from lmworks.tokenizer.pretokenize import from_oniguruma, to_oniguruma
from lmworks.tokenizer.schema import Check, field, is_bool, is_int, is_string
from lmworks.tokenizer.template import PLAIN, Template, TemplateItem

MAX_STEPS: Final = 64
is_object = Check("an object", lambda v: isinstance(v, dict))
is_list = Check("a list", lambda v: isinstance(v, list))

_PLAIN_STEPS: Final = {
    "NFC": "nfc",
    "NFD": "nfd",
    "NFKC": "nfkc",
    "NFKD": "nfkd",
    "Lowercase": "lowercase",
    "StripAccents": "strip_accents",
}


def steps_of(value: Any, key: str) -> list[dict[str, Any]]:
    """The components of a part, Sequences inside of Sequences laid flat."""
    steps: list[dict[str, Any]] = []
    waiting = [value]
    while waiting:
        step = waiting.pop()
        if step is None:
            continue
        if not isinstance(step, dict) or not isinstance(step.get("type"), str):
            raise DataError(f"{key}: expected an object with a type, got {step!r:.60}")
        if step["type"] == "Sequence":
            waiting += reversed(field(step, key, is_list, "Sequence"))
        else:
            steps.append(step)
        if len(steps) + len(waiting) > MAX_STEPS:
            raise DataError(f"{key}: more than {MAX_STEPS} steps")
    return steps


def types_of(steps: list[dict[str, Any]]) -> str:
    """The types, for messages."""
    return f"[{', '.join(repr(step['type'])[:40] for step in steps)}]"


def flag_of(step: dict[str, Any], name: str, default: bool) -> bool:
    value = step.get(name, default)
    if not is_bool.is_right(value):
        raise DataError(f"{step['type']}.{name} must be true or false, got {value!r:.60}")
    return bool(value)


# ---- model ----


def check_model(model: dict[str, Any], *, can_ignore_merges: bool = True) -> None:
    """Nothing of a BPE model is set that we do not read."""
    unset = ["dropout", "continuing_subword_prefix", "end_of_word_suffix"]
    if not can_ignore_merges:
        unset.append("ignore_merges")
    for key in unset:
        if model.get(key):
            raise DataError(f"model.{key}={model[key]!r:.60} is not supported; it must be unset")
    for key in ("ignore_merges", "fuse_unk", "byte_fallback"):
        if not is_bool.is_right(model.get(key) or False):
            raise DataError(f"model.{key}={model[key]!r:.60} must be true or false")
    if not isinstance(model.get("unk_token"), str | None):
        raise DataError(f"model.unk_token={model['unk_token']!r:.60} must be a string or null")


def checked_vocab(model: dict[str, Any]) -> dict[str, int]:
    """The model's `vocab`, in which each id is a number in range and there once."""
    vocab: dict[str, Any] = field(model, "vocab", is_object, "model")
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


# ---- normalizer ----


def read_normalizer(value: Any) -> Normalizer | None:
    """The steps of a `normalizer`."""
    steps = steps_of(value, "normalizers")
    return Normalizer.from_json([_normalizer_step(step) for step in steps]) if steps else None


def _normalizer_step(step: dict[str, Any]) -> dict[str, Any]:
    kind = step["type"]
    if kind in _PLAIN_STEPS:
        return {"kind": _PLAIN_STEPS[kind]}
    if kind == "Strip":
        left, right = flag_of(step, "strip_left", True), flag_of(step, "strip_right", True)
        return {"kind": "strip", "left": left, "right": right}
    if kind == "Prepend":
        return {"kind": "prepend", "text": field(step, "prepend", is_string, kind)}
    if kind == "Replace":
        pattern, is_regex = pattern_of(step)
        content = field(step, "content", is_string, kind)
        replace = {"kind": "replace", "pattern": pattern, "content": content}
        return {**replace, "is_regex": True} if is_regex else replace
    raise DataError(
        f"normalizer {kind!r:.60} is not supported; known: {', '.join(_PLAIN_STEPS)}, Strip, "
        "Prepend, Replace"
    )


def pattern_of(step: dict[str, Any]) -> tuple[str, bool]:
    """The string or regular expression of a Split or Replace, and whether it is the latter."""
    pattern = field(step, "pattern", is_object, step["type"])
    for key in ("String", "Regex"):
        if len(pattern) == 1 and isinstance(pattern.get(key), str):
            text: str = pattern[key]
            if key == "String":
                return text, False
            try:
                return from_oniguruma(text), True
            except ConfigError as err:
                raise DataError(f"{step['type']}: {err}") from None
    raise DataError(f"{step['type']}.pattern must be a String or a Regex, got {pattern!r:.60}")


def write_normalizer(normalizer: Normalizer | None) -> dict[str, Any] | None:
    """Inverse of `read_normalizer`."""
    if normalizer is None:
        return None
    parts = [_written_step(step.to_json()) for step in normalizer.steps]
    return parts[0] if len(parts) == 1 else {"type": "Sequence", "normalizers": parts}


def _written_step(step: Mapping[str, Any]) -> dict[str, Any]:
    for name, kind in _PLAIN_STEPS.items():
        if step["kind"] == kind:
            return {"type": name}
    if step["kind"] == "strip":
        return {"type": "Strip", "strip_left": step["left"], "strip_right": step["right"]}
    if step["kind"] == "prepend":
        return {"type": "Prepend", "prepend": step["text"]}
    if step["kind"] == "replace":
        is_regex = bool(step.get("is_regex"))
        written = written_expression(step["pattern"]) if is_regex else step["pattern"]
        pattern = {"Regex" if is_regex else "String": written}
        return {"type": "Replace", "pattern": pattern, "content": step["content"]}
    raise DataError(f"the normalizer step {step['kind']!r} has no Hugging Face form")


def written_expression(expression: str) -> str:
    """The expression as Hugging Face's engine must have it; DataError when it has no such form."""
    try:
        return to_oniguruma(expression)
    except ConfigError as err:
        raise DataError(f"{err}, so it has no Hugging Face form") from None


def byte_level(*, use_regex: bool, add_prefix_space: bool = False) -> dict[str, Any]:
    """The component ByteLevel."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


# ---- decoder ----


def check_decoder(value: Any) -> None:
    """The decoder is the one of byte-level vocabularies, or none is given."""
    steps = steps_of(value, "decoders")
    if any(step["type"] != "ByteLevel" for step in steps):
        raise DataError(f"decoder {types_of(steps)} is not supported; it must be ByteLevel")


def write_decoder() -> dict[str, Any]:
    """ByteLevel; its flags have no effect when decoding."""
    return byte_level(use_regex=True)


# ---- post-processor ----


def read_post_processor(value: Any) -> Template | None:
    """The template of a `post_processor`; None when it adds no tokens."""
    steps = [s for s in steps_of(value, "processors") if s["type"] != "ByteLevel"]
    if not steps:
        return None
    if len(steps) > 1:
        raise DataError(f"post_processor {types_of(steps)}: only one of them may add tokens")
    (step,) = steps
    if step["type"] == "TemplateProcessing":
        template = Template(_items(step, "single"), _items(step, "pair"))
    elif step["type"] in ("BertProcessing", "RobertaProcessing"):
        template = _cls_and_sep(step)
    else:
        raise DataError(
            f"post_processor {step['type']!r:.60} is not supported; known: TemplateProcessing, "
            "BertProcessing, RobertaProcessing, ByteLevel"
        )
    return None if template == PLAIN else template


def _items(step: dict[str, Any], name: str) -> tuple[TemplateItem, ...]:
    items: list[TemplateItem] = []
    special = field(step, "special_tokens", is_object, "TemplateProcessing")
    for i, item in enumerate(field(step, name, is_list, "TemplateProcessing")):
        where = f"TemplateProcessing.{name}[{i}]"
        if (
            not isinstance(item, dict)
            or len(item) != 1
            or not item.keys()
            <= {
                "Sequence",
                "SpecialToken",
            }
        ):
            raise DataError(f"{where} must be a Sequence or a SpecialToken, got {item!r:.60}")
        ((kind, content),) = item.items()
        source = field(content, "id", is_string, where)
        type_id = field(content, "type_id", is_int, where)
        if kind == "Sequence":
            if source not in ("A", "B"):
                raise DataError(f"{where}: sequence {source!r:.60} must be 'A' or 'B'")
            items.append(TemplateItem(source, type_id))
            continue
        ids = field(special.get(source), "ids", is_list, f"TemplateProcessing.{source!r:.60}")
        if not all(map(is_int.is_right, ids)):
            raise DataError(f"{where}: the ids of {source!r:.60} must be whole numbers")
        items += [TemplateItem(token_id, type_id) for token_id in ids]
    return tuple(items)


def _cls_and_sep(step: dict[str, Any]) -> Template:
    def token(name: str) -> TemplateItem:
        value = step.get(name)
        if not isinstance(value, list) or len(value) != 2 or not is_int.is_right(value[1]):
            raise DataError(f"{step['type']}.{name} must be [token, id], got {value!r:.60}")
        return TemplateItem(value[1], 0)

    cls, sep = token("cls"), token("sep")
    single = (cls, TemplateItem("A"), sep)
    if step["type"] == "RobertaProcessing":
        return Template(single, (*single, sep, TemplateItem("B"), sep))
    assert isinstance(sep.source, int), "made of an id"
    return Template(single, (*single, TemplateItem("B", 1), TemplateItem(sep.source, 1)))


def write_post_processor(
    template: Template | None, names: Mapping[int, str]
) -> dict[str, Any] | None:
    """Inverse of `read_post_processor`; `names` has the texts of special and added tokens."""
    if template is None:
        return None
    unknown = sorted(template.token_ids - names.keys())
    if unknown:
        raise DataError(
            f"the template's token {unknown[0]} is no special token, so the template has no "
            "Hugging Face form"
        )

    def written(items: tuple[TemplateItem, ...]) -> list[dict[str, Any]]:
        return [
            {"Sequence": {"id": item.source, "type_id": item.type_id}}
            if isinstance(item.source, str)
            else {"SpecialToken": {"id": names[item.source], "type_id": item.type_id}}
            for item in items
        ]

    return {
        "type": "TemplateProcessing",
        "single": written(template.single),
        "pair": written(template.pair),
        "special_tokens": {
            names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]}
            for i in sorted(template.token_ids)
        },
    }
