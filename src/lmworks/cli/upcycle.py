"""`lmworks upcycle RUN OUT`: make a mixture of experts of a dense model."""

import argparse
from pathlib import Path

from lmworks.base.errors import ConfigError
from lmworks.cli.parser import make_parser


def main(argv: list[str]) -> int:
    """Write the mixture into a folder and say how to train it."""
    args = _parser().parse_args(argv)
    out = Path(args.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already; name a new folder")
    import torch

    from lmworks.models.pretrained import TOKENIZER_FILE, open_run, save_pretrained
    from lmworks.models.upcycle import upcycle

    run = open_run(args.run)
    mixture = upcycle(
        run.model,
        num_experts=args.num_experts,
        top_k=args.top_k,
        granularity=args.granularity,
        every=args.every,
        generator=torch.Generator().manual_seed(args.seed),
    )
    save_pretrained(out, mixture)
    run.tokenizer.save(out / TOKENIZER_FILE)
    config = mixture.config
    print(
        f"{out}: {config.num_params():,} parameters, {config.num_active_params():,} of them used "
        f"per token ({run.model.num_params():,} before)\n"
        "train it with a recipe that says\n"
        f"  model: {{preset: {out}}}\n"
        f"  tokenizer: {{kind: file, path: {out / TOKENIZER_FILE}}}\n"
        f"  train: {{init_from: {out}}}"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "upcycle",
        "Make a mixture of experts of a dense model: every expert starts as its MLP, so that the "
        "first forward pass is the dense one's. Writes a model folder to train from.",
        "lmworks upcycle runs/tiny_cpu models/tiny-moe --num-experts 8 --top-k 2",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run, checkpoint or model folder")
    add("out", metavar="OUT", help="folder to write, new or empty")
    add("--num-experts", type=int, default=8, metavar="N", help="copies of each MLP (default 8)")
    add("--top-k", type=int, default=2, metavar="K", help="copies that a token uses (default 2)")
    add(
        "--granularity",
        type=int,
        default=1,
        metavar="G",
        help="cut each copy into G experts: N x G in all, K x G per token (default 1)",
    )
    add("--every", type=int, default=1, metavar="L", help="only every L-th layer (default 1)")
    add("--seed", type=int, default=0, help="of the routers (default 0)")
    return parser
