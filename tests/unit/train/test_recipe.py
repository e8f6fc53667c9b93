"""Recipes: the shipped ones load, and what cannot work is refused with a value that would."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmworks.base.config import to_yaml
from lmworks.base.errors import ConfigError
from lmworks.train.prepare import annotated_yaml
from lmworks.train.recipe import Recipe, load_recipe

RECIPES = Path(__file__).parents[3] / "recipes"
Load = Callable[..., Recipe]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Resolve a small recipe with overrides."""
    values: dict[str, Any] = {
        "model": {"d_model": 16, "num_layers": 1, "attention": {"num_heads": 2}},
        "train": {"steps": 10, "batch_size": 12, "context_length": 32},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    return lambda *overrides: load_recipe(file, overrides).config


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_recipes_load(file: Path) -> None:
    recipe = load_recipe(file).config
    assert recipe.name == file.stem
    assert recipe.train.total_steps > 0


def test_the_demo_model_has_four_to_six_million_parameters() -> None:
    recipe = load_recipe(RECIPES / "tiny_cpu.yaml").config
    assert 4_000_000 < recipe.model.num_params() < 6_000_000


def test_the_reference_recipe_has_the_shape_of_the_benchmarks() -> None:
    recipe = load_recipe(RECIPES / "seed_17m.yaml").config
    assert recipe.model.num_params() == 22_696_448
    assert recipe.train.tokens_per_step == 4096


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.contxt_length=8"], "did you mean 'context_length'"),
        (["name=../elsewhere"], r"name='\.\./elsewhere'"),
        (["train.steps=ten"], r"train\.steps='ten'"),
        (["model.max_seq_len=16"], "context_length=32 is longer than model.max_seq_len=16"),
        (["train.micro_batch_size=5"], "nearest micro_batch_size: 4"),
        (["tokenizer.vocab_size=100"], "at least 257"),
        (["model.vocab_size=5000"], "the tokenizer has 4096 tokens"),
        (["model.d_model=30", "model.attention.num_heads=4"], "nearest: 28"),
        (["train.max_tokens=1000"], "set one of train.steps and train.max_tokens; both"),
        (["train.steps=0"], "set one of train.steps and train.max_tokens; neither"),
        (["train.precision=fp16"], "use bf16, or auto"),
        (["eval.every=30", "checkpoint.every=50"], "nearest: 60"),
        (["schedule.warmup_steps=11"], "warmup_steps=11 is more than the 10 steps"),
        (["data.kind=shards", "data.train=a", "data.val=b"], "tokenizer.kind=file"),
        (["tokenizer.kind=bytes"], "tokenizer.kind='bytes'"),
        (["optim.kind=sgd", "optim.momentum=0", "optim.nesterov=true"], "but momentum=0.0"),
    ],
)
def test_what_cannot_work_is_refused(load: Load, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*overrides)


def test_the_model_takes_its_sizes_from_tokenizer_and_context(load: Load) -> None:
    recipe = load("tokenizer.vocab_size=1000")
    assert (recipe.model.vocab_size, recipe.model.max_seq_len) == (1000, 32)


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_the_vocabulary_of_a_preset_yields_to_the_tokenizer_of_the_run(kind: str) -> None:
    overrides = [f"tokenizer.kind={kind}", "tokenizer.vocab_size=300"]
    loaded = load_recipe(RECIPES / "tiny_cpu.yaml", overrides)
    assert loaded.config.model.vocab_size == 300
    assert loaded.sources["model.vocab_size"] == "default"


def test_a_vocabulary_that_the_user_sets_beside_a_preset_is_checked() -> None:
    overrides = ["model.vocab_size=4096", "tokenizer.vocab_size=300"]
    with pytest.raises(ConfigError, match=r"300 tokens; set model\.vocab_size=300"):
        load_recipe(RECIPES / "tiny_cpu.yaml", overrides)


def test_the_demo_needs_no_optional_package() -> None:
    log = load_recipe(RECIPES / "tiny_cpu.yaml").config.log
    assert (log.tensorboard, log.wandb) == (False, "off")


def test_a_micro_batch_is_the_batch_unless_given(load: Load) -> None:
    assert load("train.batch_size=10").train.micro_batch_size == 10


def test_on_and_off_are_words_in_yaml_and_overrides(load: Load) -> None:
    recipe = load("train.compile=off", "log.wandb=off")
    assert (recipe.train.compile, recipe.log.wandb) == ("off", "off")
    assert load("train.compile=on").train.compile == "on"


def test_max_tokens_round_up_to_whole_steps(load: Load) -> None:
    assert load("train.steps=0", "train.max_tokens=385").train.total_steps == 2


def test_the_annotated_yaml_loads_to_the_same_recipe(load: Load, tmp_path: Path) -> None:
    recipe = load("sample.prompts=['a: b', '# no comment', 'é']")
    sources = {"train.steps": "override"}
    file = tmp_path / "resolved.yaml"
    file.write_text(annotated_yaml(recipe, sources), encoding="utf-8")
    assert "steps: 10  # override" in file.read_text(encoding="utf-8")
    assert load_recipe(file).config == recipe
    assert yaml.safe_load(to_yaml(recipe)) == yaml.safe_load(file.read_text(encoding="utf-8"))


def test_reading_a_recipe_needs_no_torch() -> None:
    code = "import sys, lmworks.train.recipe; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_seed_that_no_generator_takes_is_refused(load: Load) -> None:
    assert load(f"train.seed={2**63 - 1}").train.seed == 2**63 - 1
    with pytest.raises(ConfigError, match=r"train\.seed"):
        load(f"train.seed={2**63}")
