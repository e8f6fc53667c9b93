"""The sampling options that `generate` and `chat` share. No torch at import."""

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmworks.serve.sampling import SamplingConfig

_OPTIONS = {
    "temperature": "0 takes the most likely token; above 1 is wilder (default: 0.8)",
    "top_k": "keep the N most likely tokens; 0 keeps all (default: 0)",
    "top_p": "keep the most likely tokens that reach probability N; 1 keeps all (default: 1)",
    "min_p": "keep tokens at least N times as likely as the best; 0 keeps all (default: 0)",
    "repetition_penalty": "above 1 makes tokens seen before less likely (default: 1)",
    "seed": "the same seed gives the same text (default: 0)",
    "max_new_tokens": "stop after N tokens (default: 200)",
}


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """One option per field of SamplingConfig that makes sense on a command line."""
    group = parser.add_argument_group("sampling")
    for name, text in _OPTIONS.items():
        group.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=text)
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end where TEXT comes up; may be given several times (\\n is a line break)",
    )


def sampling_config(args: argparse.Namespace) -> "SamplingConfig":
    """The config that the given options make; ConfigError names the one that is wrong."""
    from lmworks.base.config import load
    from lmworks.serve.sampling import SamplingConfig

    overrides = [
        f"{name}={getattr(args, name)}" for name in _OPTIONS if getattr(args, name) is not None
    ]
    if args.stop:
        stops = [text.replace("\\n", "\n").replace("\\t", "\t") for text in args.stop]
        overrides.append(f"stop={json.dumps(stops)}")
    return load(SamplingConfig, None, overrides).config


def changed(config: "SamplingConfig", assignment: str) -> "SamplingConfig":
    """`config` with `key=value` applied; ConfigError for an unknown key or a wrong value."""
    from lmworks.base.config import load
    from lmworks.serve.sampling import SamplingConfig

    current = [f"{k}={json.dumps(v)}" for k, v in config.model_dump(mode="json").items()]
    return load(SamplingConfig, None, [*current, assignment]).config
