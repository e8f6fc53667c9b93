"""The terminal loop, driven through a pipe and through made-up interrupts."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmworks.base.errors import StorageError
from lmworks.cli import chat as cli
from lmworks.models.pretrained import open_run
from lmworks.serve.chat import RAW, TRANSCRIPT, Chat
from lmworks.serve.sampling import SamplingConfig

Capture = pytest.CaptureFixture[str]
Talk = Callable[..., tuple[str, str]]


@pytest.fixture
def talk(tiny_run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Run the command on lines of input; returns standard output and standard error."""

    def run(*lines: str, options: tuple[str, ...] = ()) -> tuple[str, str]:
        text = "".join(line + "\n" for line in lines)
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert cli.main([str(tiny_run), "--max-new-tokens", "5", *options]) == 0
        return capsys.readouterr()

    return run


def answers(run: Path, *messages: str) -> str:
    opened = open_run(run)
    chat = Chat(opened.model, opened.tokenizer, SamplingConfig(max_new_tokens=5))
    return "".join("".join(chat.say(message)).lstrip() + "\n" for message in messages)


def test_piped_messages_give_the_answers_alone(talk: Talk, tiny_run: Path) -> None:
    out, err = talk("hi", "", "you")
    assert out == answers(tiny_run, "hi", "you")
    assert err == ""


def test_quit_ends_it(talk: Talk, tiny_run: Path) -> None:
    assert talk("hi", "/quit", "you")[0] == answers(tiny_run, "hi")


def test_set_changes_one_option_and_shows_all(talk: Talk) -> None:
    err = talk("/set temperature=0.25")[1]
    assert "temperature=0.25" in err
    assert "max_new_tokens=5" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temprature=1", "did you mean 'temperature'"),
        ("/set top_p=7", "top_p=7"),
        ("/set nonsense", "not of the form"),
        ("/rest", "did you mean '/reset'"),
        ("/save", "needs a file name"),
        ("w" * 100, "shorten it by"),
    ],
)
def test_a_mistake_is_explained_and_the_talk_goes_on(talk: Talk, line: str, message: str) -> None:
    out, err = talk(line, "hi")
    assert f"error: {message}" in err or ("error: " in err and message in err)
    assert len(out) > 1


def test_save_writes_the_transcript_or_messages(talk: Talk, tmp_path: Path, tiny_run: Path) -> None:
    text, messages = tmp_path / "talk.txt", tmp_path / "talk.json"
    out, _ = talk("hi", f"/save {text}", f"/save {messages}")
    assert text.read_text().startswith("User: hi\nAssistant:")
    saved = json.loads(messages.read_text())
    assert [m["role"] for m in saved] == ["user", "assistant"]
    assert saved[1]["content"] == out.strip()


def test_a_file_that_cannot_be_written_does_not_end_the_talk(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("could not write x: the disk is full")

    monkeypatch.setattr("lmworks.base.storage.write_text", refuse)
    out, err = talk("/save x", "hi")
    assert "the disk is full" in err
    assert out


def test_stats_tell_tokens_and_speed(talk: Talk) -> None:
    _, err = talk("/stats", "hi", "/stats")
    assert "no answer yet" in err
    assert "tokens/s" in err
    assert "of 64 tokens" in err


def test_help_lists_every_command(talk: Talk) -> None:
    err = talk("/help")[1]
    assert all(name in err for name in ("/reset", "/save", "/set", "/stats", "/quit"))


def test_dropping_old_turns_is_announced(talk: Talk) -> None:
    _, err = talk("first message", "second message", "third message")
    assert "oldest turns no longer fit the context of 64 tokens" in err


def test_in_raw_mode_an_empty_line_goes_on(talk: Talk) -> None:
    out, _ = talk("Once", "", options=("--raw",))
    assert out.count("\n") >= 2


class Interrupted:
    """A chat whose answer is interrupted after one piece."""

    format = RAW
    turns: tuple[()] = ()
    num_dropped = 0

    def say(self, text: str) -> Iterator[str]:
        yield text[0]
        raise KeyboardInterrupt


def loop(monkeypatch: pytest.MonkeyPatch, *events: str | type[BaseException]) -> int:
    """Number of input events that the loop consumed before it ended."""
    left = list(events)

    def read(_: str) -> str:
        event = left.pop(0)
        if isinstance(event, str):
            return event
        raise event

    monkeypatch.setattr("builtins.input", read)
    cli.Terminal(Interrupted(), is_terminal=True).loop()  # type: ignore[arg-type]
    return len(events) - len(left)


STOP = KeyboardInterrupt


def test_an_interrupt_stops_the_answer_only(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert loop(monkeypatch, "abc", "def", EOFError) == 3
    assert "a\n(stopped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("events", "consumed"),
    [((STOP, STOP, "x"), 2), (("abc", STOP, "x"), 2), ((STOP, "abc", STOP, "x"), 3)],
)
def test_two_interrupts_with_nothing_typed_between_leave(
    monkeypatch: pytest.MonkeyPatch, events: tuple, consumed: int
) -> None:
    assert loop(monkeypatch, *events) == consumed


def test_an_interrupted_answer_stays_in_the_history(tiny_run: Path) -> None:
    opened = open_run(tiny_run)
    chat = Chat(opened.model, opened.tokenizer, SamplingConfig(), TRANSCRIPT)
    pieces = chat.say("hi")
    first = next(pieces)
    assert chat.turns[-1].answer == first
