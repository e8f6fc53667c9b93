"""`lmworks upcycle` writes a folder that training starts from."""

from pathlib import Path

import pytest
import torch

from lmworks.base.errors import CheckpointError
from lmworks.cli.main import main
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import load_pretrained, open_run, save_pretrained
from lmworks.tokenizer.byte import ByteTokenizer


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    tokenizer = ByteTokenizer()
    values = {
        "vocab_size": tokenizer.vocab_size,
        "max_seq_len": 16,
        "d_model": 16,
        "num_layers": 2,
        "attention": {"num_heads": 2},
        "mlp": {"d_ff": 24},
    }
    save_pretrained(tmp_path / "dense", Decoder(ModelConfig.model_validate(values)))
    tokenizer.save(tmp_path / "dense" / "tokenizer.json")
    return tmp_path / "dense"


def test_the_folder_holds_a_mixture_that_computes_the_same(
    dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "moe"
    options = ["--num-experts", "4", "--top-k", "1", "--granularity", "2", "--every", "2"]
    assert main(["upcycle", str(dense), str(out), *options]) == 0
    assert f"init_from: {out}" in capsys.readouterr().out
    mixture = open_run(out).model
    kinds = [layer.mlp.kind for layer in mixture.config.layers()]
    assert kinds == ["dense", "moe"]
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(mixture(tokens), load_pretrained(dense)(tokens))
    assert ModelConfig.preset_values(str(out)) == mixture.config.model_dump(mode="json")


def test_nothing_is_overwritten(
    dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upcycle", str(dense), str(dense)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_folder_without_a_model_is_no_preset(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a model folder"):
        ModelConfig.preset_values(str(tmp_path))
