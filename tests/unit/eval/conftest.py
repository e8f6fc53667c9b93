"""A tiny random model over bytes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import Run
from lmworks.tokenizer import ByteTokenizer, Template


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for their threads, above all beside other tests."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """A run whose model has given options; with `bos_id` its tokenizer writes that token first."""

    def make(*, bos_id: int | None = None, context: int = 96, **options: Any) -> Run:
        tokenizer = ByteTokenizer()
        if bos_id is not None:
            tokenizer.template = Template.around(bos_id=bos_id, eos_id=None)
        config = {
            "vocab_size": tokenizer.vocab_size,
            "max_seq_len": context,
            "d_model": 16,
            "num_layers": 2,
            "attention": {"num_heads": 2},
            "mlp": {},
            "init": {"std": 0.3},
        }
        model = Decoder(ModelConfig.model_validate(config | options)).eval()
        return Run(model, tokenizer, Path("tiny"))

    return make
