"""A tiny recipe, and shards of a text that a model can learn."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmworks.data.shard import ShardSet, ShardWriter, open_shards
from lmworks.train.recipe import Recipe

VOCAB_SIZE = 40


def recipe_values() -> dict[str, Any]:
    return {
        "model": {
            "vocab_size": VOCAB_SIZE,
            "max_seq_len": 16,
            "d_model": 16,
            "num_layers": 2,
            "attention": {"num_heads": 2},
            "mlp": {"d_ff": 32},
        },
        "tokenizer": {"kind": "char"},
        "data": {"kind": "text", "files": ["unused.txt"]},
        "schedule": {"kind": "cosine", "warmup_steps": 2},
        "train": {
            "steps": 12,
            "batch_size": 4,
            "context_length": 16,
            "precision": "fp32",
            "compile": "off",
        },
        "eval": {"every": 6},
        "checkpoint": {"every": 6},
    }


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than these tiny models take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_recipe() -> Callable[..., Recipe]:
    """Build a recipe; keyword arguments update sections."""

    def make(**sections: dict[str, Any]) -> Recipe:
        values = recipe_values()
        for name, section in sections.items():
            old = values.get(name, {})
            values[name] = section if "kind" in section else {**old, **section}
        return Recipe.model_validate(values)

    return make


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    """About 2,000 tokens in documents of 5 to 60 tokens; id 0 ends each."""
    return write_shards(tmp_path_factory.mktemp("shards"))


def write_shards(folder: Path) -> ShardSet:
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, size=70)
    documents = [np.append(1 + np.arange(n - 1) * 3 % (VOCAB_SIZE - 1), 0) for n in lengths]
    with ShardWriter(folder, vocab_size=VOCAB_SIZE, eot_id=0) as writer:
        writer.append(np.concatenate(documents), lengths, text_bytes=int(lengths.sum()))
        writer.finish(tokenizer_kind="char", tokenizer_fingerprint="f" * 64, sources=())
    return open_shards(folder)
