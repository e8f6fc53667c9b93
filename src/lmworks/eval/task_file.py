"""Task files: one question per line as a JSON object, of two kinds that a file may mix.

    {"context": "The capital of France is", "choices": ["Paris", "London"], "label": 0}
    {"prompt": "Q: 2 + 3 =\\nA:", "answer": ["5", "five"], "stop": ["\\n"]}

The first is answered by the choice that the model finds likeliest, the second by generated text. A
line {"defaults": {...}} gives values to all lines after it that do not set them themselves; its
`examples`, put before every context or prompt, are the few-shot examples. No torch.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lmworks.base.config import Config, suggest
from lmworks.base.errors import DataError

Normalization = Literal["whitespace", "case", "punctuation", "articles"]
Text = Annotated[str, Field(min_length=1)]


class _Item(Config):
    """What both kinds of question have."""

    model_config = ConfigDict(strict=True)

    id: str | int | None = None
    """Name in the results; the number of the line is there anyway."""
    examples: str = ""
    """Text before the question: solved examples, instructions."""


class ChoiceItem(_Item):
    """Which of some continuations is right?"""

    context: str
    """What the choices continue."""
    choices: Annotated[list[Text], Field(min_length=2)]
    """At least two."""
    label: Annotated[int, Field(ge=0)]
    """The right one's place in `choices`, counted from 0."""
    delimiter: str = " "
    """Between context and choice."""

    @model_validator(mode="after")
    def _check(self) -> "ChoiceItem":
        if self.label >= len(self.choices):
            raise ValueError(
                f"label={self.label}: there are {len(self.choices)} choices, so it must be 0 to "
                f"{len(self.choices) - 1}"
            )
        if self.delimiter[-1:].isspace():
            for i, choice in enumerate(self.choices):
                if choice[0].isspace():
                    raise ValueError(
                        f"choices[{i}]={choice!r:.40} begins with a blank and the delimiter "
                        f'{self.delimiter!r} ends with one; drop one of them ("delimiter": "")'
                    )
        if self.delimiter[:1].isspace() and self.prompt[-1:].isspace():
            raise ValueError(
                f"the context ends with a blank and the delimiter {self.delimiter!r} begins with "
                'one; drop one of them ("delimiter": "")'
            )
        return self

    @property
    def prompt(self) -> str:
        """All before the delimiter."""
        return self.examples + self.context


def _in_a_list(answer: Any) -> Any:
    return [answer] if isinstance(answer, str) else answer


def _whitespace() -> list[Normalization]:
    return ["whitespace"]


class GenerationItem(_Item):
    """Does the model write the right answer?"""

    prompt: Text
    """What the model continues."""
    answer: Annotated[list[Text], Field(min_length=1), BeforeValidator(_in_a_list)]
    """The right answer, or several that count as right."""
    stop: list[Text] = Field(default_factory=list)
    """The answer ends before the first of these. Empty: where the model ends it."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    """The answer has at most so many tokens."""
    normalize: list[Normalization] = Field(default_factory=_whitespace)
    """What is done to both texts before they are compared; see `exact_match.normalized`."""


Item = ChoiceItem | GenerationItem

_KEYS: dict[type[Item], frozenset[str]] = {
    kind: frozenset(kind.model_fields) for kind in (ChoiceItem, GenerationItem)
}
_ALL_KEYS = frozenset().union(*_KEYS.values())
_DEFAULTS = "defaults"


def read_task(file: str | Path, *, limit: int | None = None) -> dict[int, Item]:
    """The questions of `file` by line number, the first `limit` of them if that is given.

    Raises:
        DataError: the file cannot be read, has no question, or a line is wrong; names the line.
    """
    file = Path(file)
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as err:
        raise DataError(f"{file}: cannot be read ({err.strerror})") from None
    items: dict[int, Item] = {}
    defaults: Mapping[str, Any] = {}
    for number, line in _filled(lines):
        if limit is not None and len(items) == limit:
            break
        try:
            values = _object(line)
            if _DEFAULTS in values:
                defaults = _defaults(values)
            else:
                items[number] = _item(values, defaults)
        except ValueError as err:
            raise DataError(f"{file}:{number}: {err}") from None
    if not items:
        raise DataError(f"{file}: has no question; expected one JSON object per line")
    return items


def _filled(lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as err:
        raise ValueError(f"not UTF-8 at byte {err.start} of the line") from None
    except json.JSONDecodeError as err:
        raise ValueError(f"not JSON: {err.msg} at character {err.pos + 1}") from None
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object, not {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is there twice")
    return values


def _defaults(values: dict[str, Any]) -> dict[str, Any]:
    found = values[_DEFAULTS]
    if len(values) > 1 or not isinstance(found, dict):
        raise ValueError(f'"{_DEFAULTS}" stands alone in its line and is an object of keys')
    _refuse_unknown(found)
    return found


def _item(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Item:
    _refuse_unknown(values)
    kind: type[Item] = GenerationItem if "prompt" in values else ChoiceItem
    if "prompt" not in values and "choices" not in values:
        raise ValueError(
            "must have context, choices and label (multiple choice), or prompt and answer "
            f"(generated text); it has {', '.join(values) or 'no key'}"
        )
    if other := [key for key in values if key not in _KEYS[kind]]:
        raise ValueError(
            f"{other[0]!r} does not go with {'prompt' if kind is GenerationItem else 'choices'}"
            f"{suggest(other[0], _KEYS[kind])}"
        )
    inherited = {key: value for key, value in defaults.items() if key in _KEYS[kind]}
    try:
        return kind.model_validate({**inherited, **values})
    except ValidationError as err:
        raise ValueError(_reason(err)) from None


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    for key in values:
        if key not in _ALL_KEYS:
            raise ValueError(f"no such key {key!r:.60}{suggest(key, _ALL_KEYS | {_DEFAULTS})}")


def _reason(err: ValidationError) -> str:
    """The first of the errors that pydantic found."""
    first: Any = err.errors()[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{where} must be set"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    return f"{where}={first['input']!r:.60}: {first['msg'].lower()}"
