"""`lmworks convert` and the commands that open what it wrote."""

from pathlib import Path

import pytest
import torch

from lmworks.cli.main import main
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.hf_text import save_hf_text
from lmworks.models.pretrained import load_config, open_run, save_pretrained
from lmworks.tokenizer import train_bpe_from_iterator

CHAT = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|end|>"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of ours with a chat template."""
    folder = tmp_path_factory.mktemp("source")
    tokenizer = train_bpe_from_iterator(
        ["hello world, hello"] * 9,
        vocab_size=300,
        pattern="gpt2",
        special_tokens=["<|endoftext|>", "<|user|>", "<|end|>"],
    )
    config = {
        "vocab_size": 320,
        "max_seq_len": 64,
        "d_model": 32,
        "num_layers": 2,
        "attention": {"num_heads": 2},
        "mlp": {"d_ff": 64},
        "init": {"std": 0.3},
    }
    save_pretrained(folder, Decoder(ModelConfig.model_validate(config)))
    save_hf_text(
        folder,
        tokenizer,
        chat_template=CHAT,
        special_ids={"eos": tokenizer.special_tokens["<|end|>"]},
        max_seq_len=64,
        format="lmworks",
    )
    return folder


FORMS = {"hf": "out", "lmworks": "out", "gguf": "out.gguf"}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_model(source, tmp_path, form):
    assert main(["convert", str(source), str(tmp_path / FORMS[form]), "--to", form]) == 0
    wanted, found = open_run(source), open_run(tmp_path / FORMS[form])
    tokens_BT = torch.tensor([[1, 2, 3, 299]])
    # The same weights; GGUF stores rows of q and k in another order and back.
    assert torch.equal(found.model(tokens_BT), wanted.model(tokens_BT))
    assert found.tokenizer.encode("hello world") == wanted.tokenizer.encode("hello world")
    assert found.stop_ids == wanted.stop_ids == (wanted.tokenizer.special_tokens["<|end|>"],)
    assert found.chat_template is not None
    talk = [{"role": "user", "content": "hello"}]
    assert found.chat_template.render(talk) == "<|user|>hello<|end|>"


@pytest.fixture
def typed_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user types one line."""
    lines = iter(["hello"])

    def read_line(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read_line)


@pytest.mark.usefixtures("typed_hello")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", ["generate", "chat", "eval", "params"])
def test_commands_open_every_form(source, tmp_path, capsys, form, command):
    target = tmp_path / FORMS[form]
    main(["convert", str(source), str(target), "--to", form])
    (tmp_path / "text").write_text("hello world")
    options = {
        "generate": ["--prompt", "hello", "--max-new-tokens", "3"],
        "chat": ["--max-new-tokens", "3"],
        "eval": ["--text", str(tmp_path / "text")],
        "params": ["--peak-gflops", "1"],
    }
    assert main([command, str(target), *options[command]]) == 0
    assert "error" not in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_weights_are_written_in_the_dtype_asked_for(source, tmp_path, dtype):
    main(["convert", str(source), str(tmp_path / "out"), "--to", "hf", "--dtype", dtype])
    wanted = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    assert {p.dtype for p in open_run(tmp_path / "out").model.parameters()} == {wanted}


def test_gguf_files_may_be_quantized(source, tmp_path):
    main(["convert", str(source), str(tmp_path / "out.gguf"), "--dtype", "q8_0"])
    exact = (tmp_path / "out.gguf").stat().st_size
    main(["convert", str(source), str(tmp_path / "full.gguf")])
    assert exact < 0.6 * (tmp_path / "full.gguf").stat().st_size
    assert load_config(tmp_path / "out.gguf").num_layers == 2


def test_large_weights_are_written_in_shards(source, tmp_path):
    main(["convert", str(source), str(tmp_path / "out"), "--to", "hf", "--max-shard", "50kB"])
    assert len(list((tmp_path / "out").glob("model-0*.safetensors"))) > 1
    assert open_run(tmp_path / "out").model.config.num_layers == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "onnx"], "--to onnx: not a form"),
        ([], "--to is missing"),
        (["--to", "gguf"], "a GGUF file must be named so: out.gguf"),
        (["--to", "hf", "--dtype", "q8_0"], "dtype 'q8_0' cannot be written as hf"),
        (["--to", "hf", "--max-shard", "lots"], "--max-shard='lots' is no size"),
    ],
)
def test_wrong_options_are_refused(source, tmp_path, capsys, arguments, message):
    assert main(["convert", str(source), str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_target_that_exists_is_left_alone(source, tmp_path, capsys):
    assert main(["convert", str(source), str(tmp_path), "--to", "hf"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_no_family_can_express_is_refused(source, tmp_path, capsys):
    config = open_run(source).model.config.model_dump() | {"norm_position": "post"}
    odd = tmp_path / "odd"
    save_pretrained(odd, Decoder(ModelConfig.model_validate(config)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (odd / name).write_text((source / name).read_text())
    assert main(["convert", str(odd), str(tmp_path / "out"), "--to", "hf"]) == 2
    err = capsys.readouterr().err
    assert "no Hugging Face family can express this model" in err
    assert "norm_position='post'" in err
    assert not (tmp_path / "out").exists()
