"""The shared loader: what it checks before it allocates, and what it costs."""

import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lmworks.base.errors import CheckpointError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import save_pretrained
from lmworks.models.state import build_decoder
from lmworks.models.tensor_file import Header

SMALL = {
    "vocab_size": 37,
    "max_seq_len": 16,
    "d_model": 16,
    "num_layers": 2,
    "attention": {"num_heads": 2},
}
CONFIG = ModelConfig.model_validate(SMALL)


class Weights(NamedTuple):
    """A WeightSource in memory."""

    tensors: dict[str, Tensor]
    where: str = "memory"

    @property
    def headers(self) -> Mapping[str, Header]:
        return {k: Header(tuple(v.shape), v.dtype) for k, v in self.tensors.items()}

    def fill(self, name: str, out: Tensor) -> None:
        out.copy_(self.tensors[name])


def tensors() -> dict[str, Tensor]:
    return {k: v.detach() for k, v in Decoder(CONFIG).state_dict().items()}


def test_built_model_computes_what_the_saved_one_did():
    tokens_BT = torch.arange(8).view(1, 8)
    model = build_decoder(CONFIG, Weights(tensors()))
    assert torch.equal(model(tokens_BT), Decoder(CONFIG).eval()(tokens_BT))
    assert not model.training


def test_weights_are_converted_while_they_are_read():
    model = build_decoder(CONFIG, Weights(tensors()), dtype=torch.bfloat16)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, tensors()[name].bfloat16())


def test_nothing_is_filled_when_a_shape_is_wrong():
    class Unreadable(Weights):
        def fill(self, name: str, out: Tensor) -> None:
            raise AssertionError("filled before all was checked")

    bad = tensors() | {"head.weight": torch.zeros(37, 15)}
    with pytest.raises(CheckpointError, match=r"memory: .*mis-shaped: head\.weight \(37, 15\)"):
        build_decoder(CONFIG, Unreadable(bad))


_MEASURE = """
import sys, torch
from pathlib import Path
from lmworks.models.pretrained import load_pretrained

def status(key):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(key))
    return int(line.split()[1]) * 1024

torch.set_num_threads(1)
load_pretrained(sys.argv[3])  # code that is imported on first use is not the model's size
before = status("VmRSS")
dtype = getattr(torch, sys.argv[2]) if sys.argv[2] != "stored" else None
model = load_pretrained(sys.argv[1], dtype=dtype)
size = sum(p.nbytes for p in model.parameters())
print((status("VmHWM") - before) / size, size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["stored", "bfloat16", "float64"])
def test_loading_peaks_at_1_15_times_the_final_size(tmp_path, dtype):
    # 300 MB, half of it in one tensor: a copy of that one, or its mapped pages, would show.
    large = {"vocab_size": 150_000, "d_model": 256, "num_layers": 50, "tie_embeddings": True}
    save_pretrained(tmp_path / "small", Decoder(CONFIG))
    save_pretrained(tmp_path, Decoder(ModelConfig.model_validate(SMALL | large)))
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tmp_path), dtype, str(tmp_path / "small")],
        capture_output=True,
        text=True,
        check=True,
    )
    ratio, size = map(float, run.stdout.split())
    print(f"{ratio:.3f} times {size / 1e6:.0f} MB")
    assert size > 130e6
    assert ratio < 1.15
