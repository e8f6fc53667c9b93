"""`lmworks generate RUN`: continue a prompt with a trained model."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lmworks.base.errors import ConfigError, DataError
from lmworks.cli.parser import make_parser
from lmworks.cli.sampling_options import add_sampling_options, sampling_config

if TYPE_CHECKING:
    from lmworks.models.pretrained import Run
    from lmworks.serve.generate import Generation
    from lmworks.serve.sampling import SamplingConfig

_BECAUSE = {
    "eot": "the model ended the text",
    "stop": "a stop string came up",
    "length": "--max-new-tokens reached",
    "context": "the model's context is full",
    "interrupted": "interrupted",
}


def main(argv: list[str]) -> int:
    """Print a continuation of the prompt."""
    args = _parser().parse_args(argv)
    config = sampling_config(args)
    if args.samples < 1:
        raise ConfigError(f"--samples {args.samples}: must be at least 1")
    if args.system and not args.chat:
        raise ConfigError(f"--system {args.system!r}: only a chat has a place for it; add --chat")
    if args.chat and args.truncate_prompt:
        raise ConfigError(
            "--truncate-prompt: a message in the chat template cannot lose its beginning; leave "
            "one of the two out"
        )
    prompt = read_prompt(args.prompt)
    from lmworks.models.pretrained import open_run

    run = open_run(args.run)
    config = config.model_copy(update={"stop_ids": run.stop_ids})
    if args.chat:
        asked: str | list[int] = _chat_ids(run, prompt, system=args.system)
        shown = ""
    else:
        asked = shown = prompt
    if args.quiet:
        shown = ""
    if args.samples == 1 and not args.no_stream:
        _stream(run, asked, shown, config, args)
    else:
        _print_samples(run, asked, shown, config, args)
    return 0


def _chat_ids(run: "Run", message: str, *, system: str) -> list[int]:
    """The message as the model's chat template writes it, up to where the answer begins."""
    from lmworks.serve.chat import ModelFormat, Turn

    if not message:
        raise ConfigError("--chat needs a message to answer; give one with --prompt")
    if run.chat_template is None:
        raise ConfigError(
            f"{run.path}: has no chat template, it may be a base model; leave out --chat to have "
            "the prompt continued as it is"
        )
    return ModelFormat(run.chat_template, system=system).ids([Turn(message)], run.tokenizer)


def read_prompt(argument: str) -> str:
    """The prompt itself, or standard input for `-` (without its last line break)."""
    if argument != "-":
        return argument
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as err:
        raise DataError(f"the prompt on standard input is not UTF-8 (byte {err.start})") from None
    return text.removesuffix("\n").removesuffix("\r")


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "generate",
        "Continue a prompt with a trained model.",
        'lmworks generate runs/demo --prompt "It was a dark night" --temperature 0.7 --seed 3',
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="run, checkpoint, model folder or .gguf file")
    add(
        "-p",
        "--prompt",
        default="",
        metavar="TEXT",
        help="text to continue; - reads standard input; empty lets the model begin (default)",
    )
    add(
        "--chat",
        action="store_true",
        help="the prompt is a message: write it as the model's chat template does",
    )
    add(
        "--system",
        default="",
        metavar="TEXT",
        help="with --chat: what the model is told before the message",
    )
    add("--samples", type=int, default=1, metavar="N", help="continuations to make (default: 1)")
    add("--no-stream", action="store_true", help="print only when the text is complete")
    add("--truncate-prompt", action="store_true", help="keep the end of a prompt that is too long")
    add("--quiet", action="store_true", help="the text only: no prompt, no summary")
    add_sampling_options(parser)
    return parser


def _stream(
    run: "Run",
    prompt: str | list[int],
    shown: str,
    config: "SamplingConfig",
    args: argparse.Namespace,
) -> None:
    from lmworks.serve.generate import stream

    pieces = stream(run.model, run.tokenizer, prompt, config, truncate_prompt=args.truncate_prompt)
    print(shown, end="", flush=True)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    finally:
        print(flush=True)
    if not args.quiet:
        _print_summary([pieces.generation])


def _print_samples(
    run: "Run",
    prompt: str | list[int],
    shown: str,
    config: "SamplingConfig",
    args: argparse.Namespace,
) -> None:
    from lmworks.serve.generate import generate_samples

    samples = generate_samples(
        run.model,
        run.tokenizer,
        prompt,
        config,
        num_samples=args.samples,
        truncate_prompt=args.truncate_prompt,
    )
    for i, sample in enumerate(samples):
        if len(samples) > 1:
            print(f"--- sample {i + 1}, seed {config.seed + i}")
        print(shown + sample.text)
    if not args.quiet:
        _print_summary(samples)


def _print_summary(samples: "list[Generation]") -> None:
    """One line on standard error, so that standard output holds the text alone."""
    num_tokens = sum(len(sample.token_ids) for sample in samples)
    tokens_per_s = sum(sample.tokens_per_s for sample in samples)
    why = _BECAUSE[samples[0].finish_reason] if len(samples) == 1 else f"{len(samples)} samples"
    print(
        f"[{samples[0].prompt_tokens} prompt tokens read in {samples[0].prefill_s:.2f} s,"
        f" {num_tokens} generated at {tokens_per_s:.0f} tokens/s; {why}]",
        file=sys.stderr,
    )
