"""`lmworks generate`: what it prints where, and how it refuses."""

import io
from pathlib import Path

import pytest

from lmworks.base.errors import ConfigError, DataError
from lmworks.cli.generate import main
from lmworks.cli.main import main as front_door
from lmworks.models.pretrained import open_run
from lmworks.serve.generate import generate
from lmworks.serve.sampling import SamplingConfig
from lmworks.tokenizer.chat_template import ChatTemplate

Capture = pytest.CaptureFixture[str]


def expected(run: Path, prompt: str, **options: object) -> str:
    opened = open_run(run)
    config = SamplingConfig.model_validate(options)
    return prompt + generate(opened.model, opened.tokenizer, prompt, config).text + "\n"


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_the_text_goes_to_standard_output_and_the_summary_to_standard_error(
    tiny_run: Path, capsys: Capture, flags: list[str]
) -> None:
    options = ["--max-new-tokens", "12", "--seed", "5", *flags]
    assert main([str(tiny_run), "--prompt", "hello", *options]) == 0
    out, err = capsys.readouterr()
    assert out == expected(tiny_run, "hello", max_new_tokens=12, seed=5)
    assert "5 prompt tokens" in err
    assert "12 generated" in err


def test_quiet_prints_the_continuation_only(tiny_run: Path, capsys: Capture) -> None:
    main([str(tiny_run), "--prompt", "hello", "--max-new-tokens", "3", "--quiet"])
    out, err = capsys.readouterr()
    assert "hello" + out == expected(tiny_run, "hello", max_new_tokens=3)
    assert err == ""


def test_samples_are_told_apart(tiny_run: Path, capsys: Capture) -> None:
    main([str(tiny_run), "--prompt", "x", "--samples", "2", "--max-new-tokens", "4"])
    out = capsys.readouterr().out
    assert "--- sample 1, seed 0\nx" in out
    assert "--- sample 2, seed 1\nx" in out


def test_the_prompt_can_come_from_standard_input(
    tiny_run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("piped é\n".encode())))
    main([str(tiny_run), "--prompt", "-", "--max-new-tokens", "2"])
    assert capsys.readouterr().out.startswith("piped é")


def test_a_prompt_on_standard_input_that_is_not_utf_8_is_refused(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    with pytest.raises(DataError, match="byte 2"):
        main([str(tiny_run), "--prompt", "-"])


def test_a_stop_string_may_hold_a_line_break(tiny_run: Path, capsys: Capture) -> None:
    main([str(tiny_run), "--stop", "\\n", "--max-new-tokens", "40", "--temperature", "5"])
    assert "\n" not in capsys.readouterr().out.removesuffix("\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "-1"], "temperature=-1"),
        (["--top-p", "2"], "top_p=2"),
        (["--seed", "abc"], "seed='abc'"),
        (["--samples", "0"], "--samples 0"),
    ],
)
def test_a_wrong_option_is_named_before_the_model_is_loaded(
    options: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        main(["no/such/run", *options])


def test_a_prompt_that_is_too_long_exits_2_with_both_numbers(
    tiny_run: Path, capsys: Capture
) -> None:
    assert front_door(["generate", str(tiny_run), "--prompt", "p" * 70]) == 2
    err = capsys.readouterr().err
    assert "70 tokens" in err
    assert "64" in err
    assert "--truncate-prompt" in err


def test_a_prompt_that_is_too_long_can_be_truncated(tiny_run: Path) -> None:
    assert main([str(tiny_run), "--prompt", "p" * 70, "--truncate-prompt"]) == 0


def test_a_missing_run_exits_2(capsys: Capture) -> None:
    assert front_door(["generate", "no/such/run"]) == 2
    assert "no/such/run: no such folder" in capsys.readouterr().err


@pytest.fixture
def chat_run(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run, as if its model came with a chat template and a token that ends answers."""
    opened = open_run(tiny_run)._replace(chat_template=ChatTemplate(TEMPLATE), stop_ids=(7,))
    monkeypatch.setattr("lmworks.models.pretrained.open_run", lambda path: opened)
    return tiny_run


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<bot>"


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_a_message_is_written_as_the_chat_template_does(
    chat_run: Path, capsys: Capture, flags: list[str]
) -> None:
    options = ["-p", "hi", "--chat", "--system", "S", "--max-new-tokens", "9", *flags]
    main([str(chat_run), *options])
    prompt = "<system>S<user>hi<bot>"
    want = expected(chat_run, prompt, max_new_tokens=9, stop_ids=(7,)).removeprefix(prompt)
    assert capsys.readouterr().out == want


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--system", "S"], "--system 'S': .* add --chat"),
        (["--chat", "--truncate-prompt"], "--truncate-prompt: a message"),
        (["--chat"], "has no chat template"),
        (["--chat", "-p", ""], "--chat needs a message"),
    ],
)
def test_options_of_chats_that_do_not_go_are_refused(
    tiny_run: Path, options: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        main([str(tiny_run), "-p", "hi", *options])
