"""Configuration: what wins, where it came from, and what is refused."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from lmworks.base.config import Config, load, suggest, to_yaml
from lmworks.base.errors import ConfigError


class Red(Config):
    kind: Literal["red"] = "red"
    depth: int = 1
    shade: float = 0.5


class Blue(Config):
    kind: Literal["blue"] = "blue"
    depth: int = 2


class Sized(Config):
    width: int = 10
    height: int = 20
    paint: Annotated[Red | Blue, Field(discriminator="kind")] = Red()

    @classmethod
    def preset_values(cls, name: str) -> dict[str, Any]:
        if name != "big":
            raise ConfigError(f"preset {name!r}; known: big")
        return {"width": 100}


class Whole(Config):
    name: str
    colour: Annotated[Red | Blue, Field(discriminator="kind")] = Red()
    size: Sized = Sized()
    rate: float = 1.0
    tags: tuple[str, ...] = ()
    rooms: dict[str, Sized] = Field(default_factory=dict)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text("name: x\nsize: {height: 7}\n", encoding="utf-8")
    return path


def test_overrides_go_over_the_file_over_the_defaults(file: Path) -> None:
    loaded = load(Whole, file, ["size.width=3"])
    assert loaded.config.size == Sized(width=3, height=7)
    assert loaded.sources["size.width"] == "override"
    assert loaded.sources["size.height"] == str(file)
    assert loaded.sources["rate"] == "default"


def test_a_new_kind_starts_from_its_own_defaults(file: Path) -> None:
    loaded = load(Whole, file, ["colour.depth=9", "colour.kind=blue"])
    assert loaded.config.colour == Blue()
    assert loaded.sources["colour.depth"] == "default"
    assert load(Whole, file, ["colour={kind: blue, depth: 5}"]).config.colour == Blue(depth=5)


def test_a_preset_replaces_the_section_and_keys_beside_it_go_on_top(file: Path) -> None:
    loaded = load(Whole, file, ["size={preset: big, height: 1}"])
    assert loaded.config.size == Sized(width=100, height=1)
    assert loaded.sources["size.width"] == "preset big"
    assert load(Whole, file, ["size.preset=big"]).config.size == Sized(width=100)


def test_scientific_notation_is_a_number(file: Path) -> None:
    assert load(Whole, file, ["rate=2e-3"]).config.rate == 0.002


def test_yaml_reads_back_to_an_equal_config(file: Path, tmp_path: Path) -> None:
    config = load(Whole, file, ["colour.kind=blue"]).config
    (tmp_path / "b.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert load(Whole, tmp_path / "b.yaml").config == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nam: x", r"nam: no such key; did you mean 'name'"),
        ("name: x\nsize: {wdth: 3}", r"size\.wdth: no such key; did you mean 'width'"),
        ("name: x\ncolour: {kind: blue, shade: 1}", r"colour\.shade: no such key"),
        ("name: x\ncolour: {kind: bleu}", r"colour\.kind='bleu'; allowed: 'red', 'blue'"),
        ("name: x\nrooms: {hall: {wdth: 3}}", r"rooms\.hall\.wdth: .* did you mean 'width'"),
        ("name: x\nrooms: {hall: {width: a}}", r"rooms\.hall\.width='a': input should be"),
        ("name: x\nrooms: {hall: {paint: {depth: 2}}}", r"paint\.kind: must be set; .* 'blue'"),
        ("name: x\nrooms: {hall: 3}", r"rooms\.hall=3: input should be"),
        ("name: x\ntags: word", "tags='word': input should be a list"),
        ("size: {}", "name: must be set"),
        ("name: x\nsize: {width: wide}", r"size\.width='wide': input should be a valid integer"),
        ("name: x\nrate: .nan", "rate=nan"),
        ("name: x\nsize: {preset: huge}", "known: big"),
        ("name: x\nname: y", "line 2: key 'name' is given twice"),
        ("{[a]: 1}", "line 1: .*cannot be a key"),
        ("{{a: 1}: 1}", "line 1: .*cannot be a key"),
        ("[" * 5000, "nested too deeply|not valid YAML"),
        ("a: [", "not valid YAML"),
        ("[1]", "expected `section:` keys at the top, got list"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_file(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load(Whole, path)
    assert str(path) in str(caught.value) or "preset" in text


@pytest.mark.parametrize("item", ["rate", "=3", "size..width=1", ".rate=1"])
def test_an_override_of_another_form_is_refused(file: Path, item: str) -> None:
    with pytest.raises(ConfigError, match=r"not of the form section\.key=value"):
        load(Whole, file, [item])


def test_a_missing_file_names_its_neighbour(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; did you mean .*a\.yaml"):
        load(Whole, file.with_name("b.yaml"))


def test_a_word_without_a_near_one_lists_all() -> None:
    assert suggest("zzz", ["b", "a"]) == "; known: a, b"


@pytest.mark.parametrize("value", ["[", "{a: 1", "\t[1]", "!!python/object:os.system x"])
def test_invalid_yaml_is_explained_in_one_line_with_its_place(value: str) -> None:
    with pytest.raises(ConfigError, match=r"not valid YAML \(.*line 1, column \d+\)") as caught:
        load(Config, None, [f"anything={value}"])
    assert "\n" not in str(caught.value)
