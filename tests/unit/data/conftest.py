"""Fixtures: tokenizers, right and wrong ones, and ready-made shards."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmworks.data.shard import ShardSet, ShardWriter, open_shards
from lmworks.tokenizer import ByteTokenizer


@pytest.fixture
def make_tokenizer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class FakeTokenizer, importable here and in spawned processes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("fake_tokenizer").FakeTokenizer


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    """The byte tokenizer, end-of-text id 256."""
    return ByteTokenizer()


@pytest.fixture
def make_shards(tmp_path: Path) -> Callable[..., ShardSet]:
    """Shards of documents given as id lists; the end-of-text id follows each."""

    def make(
        documents: Sequence[Sequence[int]],
        *,
        eot_id: int = 9,
        vocab_size: int = 10,
        max_shard_tokens: int = 1000,
        name: str = "shards",
    ) -> ShardSet:
        folder = tmp_path / name
        with ShardWriter(
            folder, vocab_size=vocab_size, eot_id=eot_id, max_shard_tokens=max_shard_tokens
        ) as writer:
            for ids in documents:
                tokens = np.array([*ids, eot_id], dtype=np.uint32)
                writer.append(tokens, np.array([len(tokens)]), text_bytes=len(ids))
            writer.finish(tokenizer_kind="fake", tokenizer_fingerprint="f" * 64, sources=("a.txt",))
        return open_shards(folder)

    return make
