"""Typed configuration: defaults in code, a YAML file over them, dotted overrides over that.

    loaded = load(Recipe, "recipes/tiny_cpu.yaml", ["model.num_layers=8", "optim.lr_peak=2e-3"])
    loaded.config.model.num_layers, loaded.sources["model.num_layers"]   # 8, "override"

Rules that make the result predictable:
  1. An unknown or repeated key is an error that names the nearest known key.
  2. Setting a new `kind` starts that section from the new kind's own defaults.
  3. A section whose class has `preset_values` accepts `preset: NAME`; the values of the preset
     replace the section, keys beside `preset` go on top of it.
  4. `2e-3` is a number.
"""

import difflib
import re
import typing
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from lmworks.base.errors import ConfigError

_DEFAULT, _OVERRIDE = "default", "override"


class Config(BaseModel):
    """Base of every config section: immutable, no unknown keys, field docstrings are the help."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


T = TypeVar("T", bound=Config)


@runtime_checkable
class HasPresets(Protocol):
    """A config class that knows named sets of values."""

    @classmethod
    def preset_values(cls, name: str) -> dict[str, Any]:
        """Values of the preset `name`; raises ConfigError that lists the known names."""


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A resolved config and where each of its values came from."""

    config: T
    sources: dict[str, str]
    """Dotted key of every leaf -> "default", "override", "preset NAME" or the file's path."""


def load(
    schema: type[T], file: str | Path | None = None, overrides: Sequence[str] = ()
) -> Loaded[T]:
    """Resolve `schema` from its defaults, a YAML `file` and `section.key=value` overrides.

    Raises:
        ConfigError: a file that cannot be read, an unknown key, a value that does not fit.
    """
    tree = _Tree(schema)
    if file is not None:
        tree.apply(read_yaml(file), str(file))
    for item in overrides:
        tree.apply(_parse_override(item), _OVERRIDE)
    try:
        config = schema.model_validate(tree.values)
    except ValidationError as err:
        where = f"{file}: " if file is not None else ""
        lines = [explain(error, schema) for error in err.errors()]
        raise ConfigError(where + "\n".join(lines)) from None
    leaves = _leaves(config.model_dump(mode="json"))
    return Loaded(config, {key: tree.sources.get(key, _DEFAULT) for key in leaves})


def read_yaml(file: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises ConfigError when it cannot be read or is not a mapping."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file{_nearest_file(Path(file))}") from None
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{file}: cannot be read ({err})") from None
    value = _parse_yaml(text, str(file))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            f"{file}: expected `section:` keys at the top, got {type(value).__name__}"
        )
    return value


def to_yaml(config: Config) -> str:
    """The config as YAML text that `load` reads back to an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def suggest(word: str, known: typing.Iterable[str]) -> str:
    """The tail of an error message: the nearest known word, or all of them if there are any."""
    known = sorted(known)
    if not known:
        return ""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def explain(error: Any, schema: type[Config]) -> str:
    """One line for one of pydantic's errors: where, what, the value, and what would be right."""
    location = [str(p) for p in error["loc"]]
    where, schemas, own = _walk(location, schema)
    if error["type"] == "extra_forbidden":
        known = {name for s in schemas for name in s.model_fields}
        return f"{where}: no such key{suggest(location[-1], known)}"
    if error["type"] == "missing":
        return f"{where}: must be set"
    if error["type"] == "value_error":
        detail = str(error["ctx"]["error"]) if "ctx" in error else error["msg"]
        return f"{where}: {detail}" if where else detail
    if error["type"] == "union_tag_invalid":
        return f"{where}.kind={error['ctx']['tag']!r}; allowed: {error['ctx']['expected_tags']}"
    if error["type"] == "union_tag_not_found":
        kinds = ", ".join(repr(_kind_of(section)) for section in own)
        return f"{where}.kind: must be set; allowed: {kinds}"
    message = error["msg"][0].lower() + error["msg"][1:]
    message = message.replace("a valid tuple", "a list")  # which is what YAML has
    return f"{where}={error['input']!r}: {message}"


class _Tree:
    """Values under construction. `apply` merges a patch and notes the source of each leaf."""

    def __init__(self, schema: type[Config]) -> None:
        self.schema = schema
        self.values = _defaults(schema)
        self.sources: dict[str, str] = {}

    def apply(self, patch: dict[str, Any], source: str) -> None:
        self._merge(self.values, patch, [self.schema], (), source)

    def _merge(
        self,
        tree: dict[str, Any],
        patch: dict[str, Any],
        schemas: list[type[Config]],
        path: tuple[str, ...],
        source: str,
    ) -> None:
        patch = dict(patch)
        if "kind" in patch and patch["kind"] != tree.get("kind"):
            self._reset(tree, path)
            chosen = [s for s in schemas if _kind_of(s) == patch["kind"]]
            tree.update(_defaults(chosen[0]) if chosen else {})
        for schema in schemas:
            if "preset" in patch and isinstance(schema, HasPresets):
                name = str(patch.pop("preset"))
                self._reset(tree, path)
                tree.update(_defaults(schema))
                values = schema.preset_values(name)
                self._merge(tree, values, [schema], path, f"preset {name}")
        if len(schemas) > 1:
            schemas = [s for s in schemas if _kind_of(s) == tree.get("kind")] or schemas
        for raw_key, value in patch.items():
            key = str(raw_key)
            field_schemas = [
                section
                for schema in schemas
                if key in schema.model_fields
                for section in _sections(schema.model_fields[key].annotation)
            ]
            is_open = isinstance(value, dict) and isinstance(tree.get(key), dict)  # any keys
            if isinstance(value, dict) and (field_schemas or is_open):
                child = tree.setdefault(key, {})
                if not isinstance(child, dict):
                    child = tree[key] = {}
                self._merge(child, value, field_schemas, (*path, key), source)
            else:
                self._forget((*path, key))
                tree[key] = value
                for leaf in _leaves(value, (*path, key)):
                    self.sources[leaf] = source

    def _reset(self, tree: dict[str, Any], path: tuple[str, ...]) -> None:
        tree.clear()
        self._forget(path)

    def _forget(self, path: tuple[str, ...]) -> None:
        prefix = ".".join(path)
        for key in [k for k in self.sources if k == prefix or k.startswith(prefix + ".")]:
            del self.sources[key]


def _defaults(schema: type[Config]) -> dict[str, Any]:
    """Default values as plain data; required fields are left out."""
    values: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        if field.is_required():
            sections = _sections(field.annotation)
            if len(sections) == 1:
                values[name] = _defaults(sections[0])
            continue
        default = field.get_default(call_default_factory=True)
        values[name] = default.model_dump() if isinstance(default, BaseModel) else default
    return values


def _leaves(value: Any, path: tuple[str, ...] = ()) -> list[str]:
    if isinstance(value, dict) and value:
        return [leaf for k, v in value.items() for leaf in _leaves(v, (*path, str(k)))]
    return [".".join(path)]


def _sections(annotation: Any) -> list[type[Config]]:
    """The Config classes that an annotation allows directly (also in a union or an Annotated)."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    origin = typing.get_origin(annotation)
    if origin in (list, tuple, dict):
        return []
    return [s for arg in typing.get_args(annotation) for s in _sections(arg)]


def _named_sections(annotation: Any) -> list[type[Config]]:
    """The Config classes of the values of `dict[str, Section]`."""
    args = typing.get_args(annotation)
    return _sections(args[1]) if typing.get_origin(annotation) is dict else []


def _kind_of(schema: type[Config]) -> Any:
    field = schema.model_fields.get("kind")
    return None if field is None else field.default


def _parse_override(item: str) -> dict[str, Any]:
    path, eq, text = item.partition("=")
    if not eq or not all(path.split(".")):
        raise ConfigError(f"override {item!r} is not of the form section.key=value")
    nested: Any = _parse_yaml(text, f"override {item!r}")
    for key in reversed(path.split(".")):
        nested = {key: nested}
    return typing.cast(dict[str, Any], nested)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but `2e-3` is a number and a repeated key is an error."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, Hashable):
            raise ConfigError(f"line {line}: {key!r} cannot be a key; use a word")
        if key in seen:
            raise ConfigError(f"line {line}: key {key!r} is given twice; keep one")
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # _Loader is a SafeLoader
    except ConfigError as err:
        raise ConfigError(f"{where}: {err}") from None
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{where}: not valid YAML ({err.problem}{place})") from None
    except (yaml.YAMLError, ValueError) as err:
        raise ConfigError(f"{where}: not valid YAML ({' '.join(str(err).split())})") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply") from None


def _nearest_file(path: Path) -> str:
    folder = path.parent
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {folder / close[0]}?" if close else ""


def _walk(
    location: list[str], schema: type[Config]
) -> tuple[str, list[type[Config]], list[type[Config]]]:
    """Dotted path without union tags, the schemas of the section that holds its last part, and
    those of the last part itself."""
    here: list[type[Config]] = [schema]
    parent = here
    parts: list[str] = []
    named: list[type[Config]] = []
    for part in location:
        if named:  # a name in a mapping of sections, which any word may be
            parts.append(part)
            parent, here, named = named, named, []
            continue
        if len(here) > 1 and part in {str(_kind_of(s)) for s in here}:
            here = [s for s in here if str(_kind_of(s)) == part]
            parent = here
            continue
        parent = here
        parts.append(part)
        fields = [s.model_fields[part] for s in here if part in s.model_fields]
        here = [section for field in fields for section in _sections(field.annotation)]
        named = [section for field in fields for section in _named_sections(field.annotation)]
    return ".".join(parts), parent, here
