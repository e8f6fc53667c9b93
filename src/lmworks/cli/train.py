"""`lmworks train RECIPE [key=value ...]` and `lmworks train --resume RUN`."""

import argparse
import sys
from typing import TYPE_CHECKING

from lmworks.base.config import Loaded, to_yaml
from lmworks.base.errors import ConfigError
from lmworks.cli.next_steps import next_steps
from lmworks.cli.parser import make_parser
from lmworks.train.recipe import Recipe, load_recipe
from lmworks.train.run_folder import RunFolder

if TYPE_CHECKING:
    from lmworks.models.decoder import Decoder
    from lmworks.tokenizer import Tokenizer
    from lmworks.train.loop import Outcome
    from lmworks.train.recipe import SampleConfig


def main(argv: list[str]) -> int:
    """Run `lmworks train ...` and return its exit status."""
    # Values may stand on both sides of an option.
    args = _parser().parse_intermixed_args(argv)
    if args.resume is not None:
        return _resume(args)
    if not args.recipe:
        raise ConfigError("no recipe given: lmworks train RECIPE.yaml, or --resume RUN")
    if args.from_checkpoint:
        raise ConfigError("--from names a checkpoint of a run: it goes with --resume RUN")
    loaded = load_recipe(args.recipe[0], args.recipe[1:])
    run = RunFolder(args.run or f"runs/{loaded.config.name}")
    if args.print_config:
        print(to_yaml(loaded.config), end="")
        return 0
    from lmworks.train.prepare import check_folder, check_inputs, describe_text, prepare

    if args.dry_run:
        check_inputs(loaded)
        check_folder(run, overwrite=args.overwrite)
        _print_plan(loaded, run, describe_text(loaded.config))
        return 0
    prepare(run, loaded, overwrite=args.overwrite, say=print)
    return _train(run, None)


def _resume(args: argparse.Namespace) -> int:
    run = RunFolder(args.resume)
    run.require_prepared()
    if args.run or args.overwrite:
        raise ConfigError("--resume goes on in its own folder: leave out --run and --overwrite")
    from lmworks.train.prepare import change_recipe

    recipe = change_recipe(run, args.recipe, write=not (args.dry_run or args.print_config))
    if args.print_config:
        print(to_yaml(recipe), end="")
        return 0
    if args.dry_run:
        _print_plan(Loaded(recipe, {}), run)
        return 0
    return _train(run, args.from_checkpoint)


def _train(run: RunFolder, resume_from: str | None) -> int:
    from lmworks.train.allocator import reuse_memory
    from lmworks.train.loop import train
    from lmworks.train.signals import EXIT_STATUS

    print(reuse_memory())
    outcome = train(run, sampler=sample, resume_from=resume_from)
    if outcome.signal is not None and outcome.step < outcome.total_steps:
        print(
            f"stopped by {outcome.signal.name} at step {outcome.step} of {outcome.total_steps}, "
            f"all saved; go on with: lmworks train --resume {run.path}",
            file=sys.stderr,
        )
        return EXIT_STATUS[outcome.signal]
    _print_end(outcome, run)
    return 0


def sample(model: "Decoder", tokenizer: "Tokenizer", config: "SampleConfig") -> list[str]:
    """Continue every prompt of a recipe's `sample` section."""
    from lmworks.serve.generate import generate
    from lmworks.serve.sampling import SamplingConfig

    sampling = SamplingConfig(
        temperature=config.temperature, max_new_tokens=config.max_new_tokens, seed=config.seed
    )
    return [
        generate(model, tokenizer, prompt, sampling, truncate_prompt=True).text
        for prompt in config.prompts
    ]


def _print_plan(loaded: Loaded[Recipe], run: RunFolder, text: str | None = None) -> None:
    recipe = loaded.config
    train = recipe.train
    flops = recipe.model.flops_per_token(train.context_length, training=True)
    tokens = train.total_steps * train.tokens_per_step
    print(f"recipe {recipe.name}: everything fits together (dry run, nothing written)")
    print(f"  run folder   {run.path}")
    if text is not None:
        print(f"  text         {text}")
    print(f"  parameters   {recipe.model.num_params():,}")
    print(f"  steps        {train.total_steps:,} of {train.tokens_per_step:,} tokens")
    print(f"  tokens       {tokens:,}")
    print(f"  arithmetic   {flops / 1e6:,.1f} MFLOP per token, {tokens * flops:.2e} FLOP in all")


def _print_end(outcome: "Outcome", run: RunFolder) -> None:
    print(f"finished: step {outcome.step} of {outcome.total_steps}, all in {run.path}")
    print(next_steps(run.path, with_report=True))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "train",
        "Train a model from a recipe (one YAML file), or go on with a run that was stopped.",
        "lmworks train recipes/tiny_cpu.yaml train.steps=500 model.num_layers=6 --run runs/first\n"
        "  lmworks train --resume runs/first",
    )
    parser.add_argument(
        "recipe",
        nargs="*",
        metavar="RECIPE key=value",
        help="recipe file, then values to change in it (with --resume: only values)",
    )
    parser.add_argument("--run", metavar="DIR", help="run folder (default: runs/NAME-OF-RECIPE)")
    parser.add_argument(
        "--overwrite", action="store_true", help="start anew in a folder that holds a run"
    )
    parser.add_argument("--resume", metavar="RUN", help="go on with this run where it stopped")
    parser.add_argument(
        "--from",
        dest="from_checkpoint",
        metavar="step-N",
        help="with --resume: go back to this checkpoint first",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, print the plan, write nothing"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved recipe and stop"
    )
    return parser
