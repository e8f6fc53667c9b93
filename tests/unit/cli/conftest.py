"""A run folder with a tiny random model, byte tokens and a little validation data."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lmworks.data.shard import ShardWriter
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import save_pretrained
from lmworks.tokenizer import ByteTokenizer

CONTEXT = 64


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for their threads, above all beside other tests."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN with checkpoints/step-1, tokenizer.json and data/val. Not to be changed by a test."""
    run = tmp_path_factory.mktemp("run")
    tokenizer = ByteTokenizer()
    tokenizer.save(run / "tokenizer.json")
    config = ModelConfig.model_validate(
        {
            "vocab_size": tokenizer.vocab_size,
            "max_seq_len": CONTEXT,
            "d_model": 16,
            "num_layers": 1,
            "attention": {"num_heads": 2},
            "mlp": {},
            "init": {"std": 0.3},
        }
    )
    save_pretrained(run / "checkpoints/step-1", Decoder(config))
    (run / "checkpoints/latest").write_text("step-1\n")
    eot_id = tokenizer.special_tokens["<|endoftext|>"]
    with ShardWriter(run / "data/val", vocab_size=tokenizer.vocab_size, eot_id=eot_id) as writer:
        ids = np.array([*b"held-out text", eot_id])
        writer.append(ids, np.array([len(ids)]), text_bytes=13)
        writer.finish(
            tokenizer_kind="byte", tokenizer_fingerprint=tokenizer.fingerprint, sources=()
        )
    return run
