"""Saving and loading a model: exact, or refused with a message that says what is not right."""

import json
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmworks.base.errors import CheckpointError, StorageError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.pretrained import (
    checkpoint_folder,
    load_pretrained,
    open_run,
    save_pretrained,
)
from lmworks.tokenizer import ByteTokenizer

CONFIG = {
    "vocab_size": 37,
    "max_seq_len": 16,
    "d_model": 16,
    "num_layers": 2,
    "attention": {"num_heads": 2},
}
TOKENS = torch.arange(12).view(2, 6)


def make_model(**changes) -> Decoder:
    return Decoder(ModelConfig.model_validate(CONFIG | changes)).eval()


@pytest.fixture
def folder(tmp_path) -> Path:
    save_pretrained(tmp_path / "model", make_model())
    return tmp_path / "model"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("position", ["rope", "sinusoidal", "learned", "none"])
def test_loaded_model_gives_the_same_logits(tmp_path, tied, position):
    model = make_model(tie_embeddings=tied, position={"kind": position})
    save_pretrained(tmp_path / "model", model)
    loaded = load_pretrained(tmp_path / "model")
    assert loaded.config == model.config
    assert torch.equal(loaded(TOKENS), model(TOKENS))


def test_weights_keep_the_dtype_they_were_saved_in(tmp_path):
    save_pretrained(tmp_path, make_model().to(torch.bfloat16))
    loaded = load_pretrained(tmp_path)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert loaded.ropes[0].frequency_P.dtype == torch.float64


def test_loaded_weights_can_be_trained(folder):
    model = load_pretrained(folder)
    model(TOKENS).sum().backward()
    assert all(p.requires_grad and p.grad is not None for p in model.parameters())


def test_loading_leaves_the_global_generator_alone(folder):
    before = torch.get_rng_state()
    load_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: missing"):
        load_pretrained(folder)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.999])
def test_truncated_weights_are_refused(folder, share):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated or not"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"vocab_size": 3}', "[" * 100_000, "\xff"]
)
def test_broken_config_is_refused(folder, text):
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json: not"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 3}, r"missing: layers\.2\.attention_norm\.weight.* and 6 more"),
        ({"num_layers": 1}, r"unexpected: layers\.1\."),
        ({"tie_embeddings": True}, r"unexpected: head\.weight"),
        ({"vocab_size": 38}, r"mis-shaped: embed\.weight \(37, 16\) not \(38, 16\)"),
        ({"use_bias": True}, r"missing: layers\.0\.attention\.q\.bias"),
        ({"num_layers": 10**12}, r"21 tensors cannot be a model of num_layers=1000000000000"),
        ({"max_seq_len": 10**12}, "max_seq_len: Input should be less than or equal"),
    ],
)
def test_weights_of_another_architecture_are_refused(folder, change, message):
    file = folder / "config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | change))
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(folder)


def test_integer_weights_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["embed.weight"] = tensors["embed.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"not floating point: embed\.weight int8"):
        load_pretrained(folder)


def test_run_folder_means_its_latest_checkpoint(tmp_path, folder):
    run = tmp_path / "run"
    for name in ["step-9", "step-10"]:
        save_pretrained(run / "checkpoints" / name, make_model())
    assert checkpoint_folder(run).name == "step-10"
    (run / "checkpoints" / "latest").write_text("step-9\n")
    assert checkpoint_folder(run).name == "step-9"
    assert checkpoint_folder(folder) == folder


@pytest.mark.parametrize("pointer", ["", "\n"])
def test_an_empty_pointer_means_the_newest_checkpoint(tmp_path, pointer):
    run = tmp_path / "run"
    for name in ["step-9", "step-10"]:
        (run / "checkpoints" / name).mkdir(parents=True)
    (run / "checkpoints" / "latest").write_text(pointer)
    assert checkpoint_folder(run).name == "step-10"


@pytest.mark.parametrize("pointer", ["step-7", "../../model", "/etc"])
def test_pointer_to_no_checkpoint_is_refused(tmp_path, folder, pointer):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "latest").write_text(pointer)
    with pytest.raises(CheckpointError, match=r"latest: names"):
        load_pretrained(tmp_path / "run")


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_path_that_is_no_folder_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"{name}: (no such folder|is a file)"):
        load_pretrained(tmp_path / name)


def test_run_without_tokenizer_is_refused(folder):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing"):
        open_run(folder)


@pytest.mark.parametrize("of", ["run", "run/checkpoints/step-1"])
def test_run_and_its_checkpoints_open_with_the_runs_tokenizer(tmp_path, of):
    save_pretrained(tmp_path / "run/checkpoints/step-1", make_model(vocab_size=300))
    ByteTokenizer().save(tmp_path / "run/tokenizer.json")
    run = open_run(tmp_path / of)
    assert run.tokenizer.decode(run.tokenizer.encode("hello")) == "hello"
    assert run.model.config.vocab_size == 300
    assert run.path == tmp_path / "run/checkpoints/step-1"


def test_tokenizer_with_more_tokens_than_the_model_knows_is_refused(folder):
    ByteTokenizer().save(folder / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"tokens, but the model knows vocab_size=37"):
        open_run(folder)


@pytest.fixture
def max_file_size():
    """A function that limits the size of files this process may write, in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_leaves_the_old_model(folder, max_file_size):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    max_file_size(2000)
    with pytest.raises(StorageError, match=r"could not write .*disk is full or a size limit"):
        save_pretrained(folder, make_model(d_model=32))
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
