"""`lmworks chat RUN`: talk to a trained model in the terminal.

Answers stream; Ctrl-C stops the current one, a second Ctrl-C or Ctrl-D leaves. Without a terminal
(a pipe) each line of standard input is a message and only the answers are printed.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lmworks.base.config import suggest
from lmworks.base.errors import ConfigError, LmworksError
from lmworks.cli.parser import make_parser
from lmworks.cli.sampling_options import add_sampling_options, changed, sampling_config

if TYPE_CHECKING:
    from lmworks.models.pretrained import Run
    from lmworks.serve.chat import Chat, Format

_COMMANDS = {
    "/reset": "forget the conversation",
    "/save FILE": "write the conversation to FILE (.json: as messages)",
    "/set KEY=VALUE": "change a sampling option, for example /set temperature=0.7",
    "/set": "show the sampling options",
    "/stats": "tokens and speed of the last answer",
    "/help": "this list",
    "/quit": "leave (also Ctrl-D)",
}
_INTERRUPTS_TO_LEAVE = 2


def main(argv: list[str]) -> int:
    """Run the terminal loop until the user leaves or standard input ends."""
    args = _parser().parse_args(argv)
    config = sampling_config(args)
    from lmworks.models.pretrained import open_run
    from lmworks.serve.chat import Chat

    run = open_run(args.run)
    config = config.model_copy(update={"stop_ids": run.stop_ids})
    chat = Chat(run.model, run.tokenizer, config, _format(run, args))
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        _enable_line_editing()
        _print_greeting(chat, run.path)
    try:
        Terminal(chat, is_terminal=is_terminal).loop()
    except KeyboardInterrupt:
        print()  # a second Ctrl-C so quick that the loop was not yet reading again
    return 0


def _format(run: "Run", args: argparse.Namespace) -> "Format":
    """The model's own template where it has one."""
    from lmworks.serve.chat import RAW, TRANSCRIPT, ModelFormat

    if args.system and (args.raw or run.chat_template is None):
        why = "with --raw nothing" if args.raw else f"{run.path} has no chat template, so nothing"
        raise ConfigError(f"--system {args.system!r}: {why} says where it would go")
    if args.raw:
        return RAW
    if run.chat_template is None:
        return TRANSCRIPT
    return ModelFormat(run.chat_template, system=args.system)


class Terminal:
    """Reads lines, obeys commands, prints answers."""

    def __init__(self, chat: "Chat", *, is_terminal: bool) -> None:
        self.chat = chat
        self.is_terminal = is_terminal
        self._num_interrupts = 0

    def loop(self) -> None:
        """Until /quit, the end of input, or two interrupts with nothing typed in between."""
        while self._num_interrupts < _INTERRUPTS_TO_LEAVE:
            try:
                line = input("> " if self.is_terminal else "")
            except EOFError:
                break
            except KeyboardInterrupt:
                self._num_interrupts += 1
                self._note("\n(Ctrl-C again or Ctrl-D leaves)" if self._num_interrupts == 1 else "")
                continue
            self._num_interrupts = 0
            if line.strip() == "/quit":
                break
            self._handle(line)
        if self.is_terminal:
            print()

    def _handle(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._command(*line.strip().partition(" ")[::2])
            elif line.strip() or self._can_continue:
                self._answer(line)
        except LmworksError as err:
            # A wrong option or a message that is too long ends neither the loop nor the history.
            print(f"error: {err}", file=sys.stderr, flush=True)

    @property
    def _can_continue(self) -> bool:
        from lmworks.serve.chat import RAW

        return self.chat.format is RAW and bool(self.chat.turns)

    def _answer(self, text: str) -> None:
        from lmworks.serve.chat import RAW

        pieces = self.chat.say(text)
        if self.chat.num_dropped:
            self._note(
                f"(the {self.chat.num_dropped} oldest turns no longer fit the context of"
                f" {self.chat.model.config.max_seq_len} tokens and were dropped)"
            )
        is_start = self.chat.format is not RAW
        try:
            for piece in pieces:
                # The space before an answer belongs to the template's colon.
                shown = piece.lstrip() if is_start else piece
                is_start = is_start and not shown
                print(shown, end="", flush=True)
            print(flush=True)
        except KeyboardInterrupt:
            self._num_interrupts = 1
            print(flush=True)
            self._note("(stopped; Ctrl-C again leaves)")

    def _command(self, name: str, argument: str) -> None:
        commands = {
            "/reset": self._reset,
            "/save": self._save,
            "/set": self._set,
            "/stats": self._stats,
            "/help": self._help,
        }
        if name not in commands:
            raise ConfigError(f"no command {name!r}{suggest(name, [*commands, '/quit'])}")
        commands[name](argument.strip())

    def _reset(self, _: str) -> None:
        self.chat.reset()
        self._note("(forgotten)")

    def _save(self, file: str) -> None:
        from lmworks.base.storage import write_json, write_text

        if not file:
            raise ConfigError("/save needs a file name, for example /save talk.txt")
        if file.endswith(".json"):
            write_json(file, self.chat.messages())
        else:
            write_text(file, self.chat.transcript())
        self._note(f"(saved {len(self.chat.turns)} turns to {file})")

    def _set(self, assignment: str) -> None:
        if assignment:
            self.chat.config = changed(self.chat.config, assignment)
        values = self.chat.config.model_dump(mode="json")
        self._note("  ".join(f"{key}={value}" for key, value in values.items()))

    def _stats(self, _: str) -> None:
        last = self.chat.last
        if last is None:
            self._note("(no answer yet)")
            return
        context = self.chat.model.config.max_seq_len
        self._note(
            f"(prompt {last.prompt_tokens} of {context} tokens, read in {last.prefill_s:.2f} s;"
            f" answer {len(last.token_ids)} tokens at {last.tokens_per_s:.0f} tokens/s;"
            f" ended: {last.finish_reason})"
        )

    def _help(self, _: str) -> None:
        width = max(map(len, _COMMANDS))
        self._note("\n".join(f"  {name:<{width}}  {text}" for name, text in _COMMANDS.items()))

    def _note(self, text: str) -> None:
        """What the program says, not the model: on standard error when answers are piped."""
        print(text, file=sys.stdout if self.is_terminal else sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "chat",
        "Talk to a trained model in the terminal, in the format of its own chat template. A base\n"
        "model has none: it goes on with the transcript `User: ... Assistant: ...`; with --raw it\n"
        "continues your text instead.",
        "lmworks chat runs/demo --temperature 0.7",
    )
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="run, checkpoint, model folder or .gguf file"
    )
    parser.add_argument(
        "--system", default="", metavar="TEXT", help="what the model is told before the first turn"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="no names: the model continues what you type; an empty line lets it go on",
    )
    add_sampling_options(parser)
    return parser


def _enable_line_editing() -> None:
    """Arrow keys and history for input(), where Python was built with it."""
    import importlib.util

    if importlib.util.find_spec("readline"):
        import readline

        readline.set_history_length(1000)


def _print_greeting(chat: "Chat", path: Path) -> None:
    config = chat.model.config
    print(
        f"{path}: {chat.model.num_params() / 1e6:.1f} M parameters, context {config.max_seq_len}"
        " tokens. /help lists the commands, Ctrl-D leaves."
    )
