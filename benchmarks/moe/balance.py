"""What happens to the experts of a small mixture without balancing, and with each method.

    python benchmarks/moe/balance.py CORPUS [--steps 300] [--seeds 1] [--methods none switch ...]

Runs recipes/moe_balance.yaml once per method and seed on the head of a text, one process, one
thread. The arithmetic per token is the same for all: two experts of 16, or for routers that give
each token one expert, one of 8 that are twice as wide.

Reported over the last sixth of training: entropy of the loads (1: even, 0: one expert has all),
starved experts (less than a tenth of the even share; both of loads summed over these steps), the
most loaded expert; and the held-out loss with the loads there, where routers that balance by
assignment no longer do so. Writes benchmarks/results/moe_balance.json, and the picture and the
table of docs/moe.md; `--table` only makes that table anew.
"""

import argparse
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lmworks.base.storage import write_text
from lmworks.bench.harness import Row, Spread, print_rows, save_result
from lmworks.bench.report import load_result
from lmworks.data.loader import Loader
from lmworks.data.shard import open_shards
from lmworks.models.pretrained import load_pretrained
from lmworks.train.loop import train
from lmworks.train.metrics import read_metrics
from lmworks.train.prepare import prepare, shard_folders
from lmworks.train.recipe import load_recipe
from lmworks.train.routing import RoutingReport, RoutingSums
from lmworks.train.run_folder import RunFolder

RECIPE = "recipes/moe_balance.yaml"
PAGE, PICTURE = Path("docs/moe.md"), Path("docs/images/moe-balance.png")
_MARKS = re.compile(r"(<!-- moe_balance -->\n).*?(<!-- /moe_balance -->)", re.DOTALL)
CORPUS_BYTES = 6_000_000
LAST_SHARE = 6
NUM_EVAL_BATCHES = 16
ONE_WIDE_EXPERT = ["model.mlp.num_experts=8", "model.mlp.d_ff=128"]

METHODS: dict[str, list[str]] = {
    "none": [],
    "switch": ["model.mlp.balance.switch_weight=0.01"],
    "sequence": ["model.mlp.balance.sequence_weight=0.01"],
    "device": ["model.mlp.balance.device_weight=0.01", "model.mlp.balance.num_devices=4"],
    "bias": [
        "model.mlp.router={kind: topk, top_k: 2, score: sigmoid, selection_bias: true}",
        "model.mlp.balance.bias_rate=0.003",
    ],
    "noisy_topk": ["model.mlp.router={kind: noisy_topk, top_k: 2}"],
    "expert_choice": ["model.mlp.router={kind: expert_choice, mean_experts: 2}"],
    "hash": ["model.mlp.router={kind: hash}", *ONE_WIDE_EXPERT],
    "top1": ["model.mlp.router={kind: topk, top_k: 1, normalize: false}", *ONE_WIDE_EXPERT],
    "sinkhorn": ["model.mlp.router={kind: sinkhorn}", *ONE_WIDE_EXPERT],
    "auction": ["model.mlp.router={kind: auction}", *ONE_WIDE_EXPERT],
}


def run_method(folder: Path, text: Path, method: str, *, steps: int, seed: int) -> RunFolder:
    """Train the recipe with one method."""
    run = RunFolder(folder / f"{method}-{seed}")
    overrides = [
        f"data.files=[{text}]", f"train.steps={steps}", f"eval.every={steps}",
        f"checkpoint.every={steps}", f"train.seed={seed}", "log.routing_every=1",
        *METHODS[method],
    ]  # fmt: skip
    prepare(run, load_recipe(RECIPE, overrides), overwrite=True, say=lambda line: None)
    train(run, sampler=lambda model, tokenizer, config: [])
    return run


def figures(run: RunFolder) -> dict[str, float]:
    """What the study reports of one run."""
    records = read_metrics(run.path)
    tables = [record for record in records if record["kind"] == "routing"]
    steps = [record for record in records if record["kind"] == "train"]
    last = tables[-max(1, len(tables) // LAST_SHARE) :]
    load_LE = torch.tensor([table["load_percent"] for table in last]).double().mean(0) / 100
    trained = with_loads(load_LE)
    losses = [record["loss"] for record in steps[-len(last) :]]
    held_out_loss = next(r["loss"] for r in reversed(records) if r["kind"] == "eval")
    held_out = held_out_routing(run)
    return {
        "training loss": sum(losses) / len(losses),
        "held-out loss": held_out_loss,
        "load entropy": float(trained.load_entropy_L.mean()),
        "load entropy, held out": float(held_out.load_entropy_L.mean()),
        "starved experts, %": 100 * float((trained.starved_L / load_LE.shape[1]).mean()),
        "largest load": float(load_LE.max()),
    }


def with_loads(load_LE: torch.Tensor) -> RoutingReport:
    """A report of nothing but loads."""
    zeros_L = torch.zeros(len(load_LE))
    return RoutingReport(0.0, 0.0, load_LE, zeros_L, zeros_L)


@torch.no_grad()
def held_out_routing(run: RunFolder) -> RoutingReport:
    """What the routers do on held-out text, outside training."""
    recipe = load_recipe(run.recipe).config
    model = load_pretrained(run.path)
    loader = Loader(
        open_shards(shard_folders(run, recipe)[1]),
        batch_size=recipe.train.batch_size,
        context_length=recipe.train.context_length,
        order="sequential",
    )
    sums: RoutingSums | None = None
    for _ in range(NUM_EVAL_BATCHES):
        tokens_BT = torch.from_numpy(loader.next_batch().inputs_BT)
        routing = model.train_hidden(tokens_BT).routing
        assert routing is not None, "the recipe has experts"
        if sums is None:
            sums = RoutingSums(routing, num_tokens=tokens_BT.numel())
        else:
            sums.add(routing, num_tokens=tokens_BT.numel())
    assert sums is not None, "there is at least one batch"
    return sums.report()


def draw(runs: dict[str, RunFolder], path: Path) -> None:
    """Loads of the first layer's experts over the steps, a strip per method."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 0.75 * len(runs) + 0.8), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    strips: Any = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (method, run) in zip(strips, runs.items(), strict=True):
        tables = [record for record in read_metrics(run.path) if record["kind"] == "routing"]
        load_SE = torch.tensor([table["load_percent"][0] for table in tables]) / 100
        # Experts by their load in the end, so that a strip shows how many are used.
        order_E = load_SE[-len(tables) // LAST_SHARE :].mean(0).argsort(descending=True)
        image = axes.imshow(
            load_SE[:, order_E].T.clamp(min=0.1).log2().numpy(),
            aspect="auto", cmap="RdBu_r", vmin=-3, vmax=3, interpolation="nearest",
            extent=(0, tables[-1]["step"], load_SE.shape[1], 0),
        )  # fmt: skip
        axes.set_ylabel(method, rotation=0, ha="right", va="center")
        axes.set_yticks([])
    strips[-1].set_xlabel("step")
    bar = figure.colorbar(image, ax=strips.tolist(), pad=0.01, aspect=40, ticks=range(-3, 4))
    bar.ax.set_yticklabels([f"{2.0**octave:g}" for octave in range(-3, 4)])
    bar.set_label("load, as a multiple of the even share")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def write_table() -> None:
    """Put the result file's figures into the page, a line per method."""
    rows = load_result("moe_balance")["rows"]
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    lines = [f"| method | {' | '.join(metrics)} |", "|---" * (len(metrics) + 1) + "|"]
    for method in dict.fromkeys(row["case"] for row in rows):
        found = {row["metric"]: row["median"] for row in rows if row["case"] == method}
        values = [f"{found[m]:.0f}" if "%" in m else f"{found[m]:.2f}" for m in metrics]
        lines.append(f"| `{method}` | {' | '.join(values)} |")
    table = "\n".join(lines) + "\n"
    page = PAGE.read_text(encoding="utf-8")
    write_text(PAGE, _MARKS.sub(lambda match: match[1] + table + match[2], page))


def main(argv: Sequence[str]) -> None:
    """Run, print, write the result file and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    args = parser.parse_args(argv)
    if args.table:
        write_table()
        return
    if args.corpus is None:
        parser.error("give a text file")
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    runs: dict[str, RunFolder] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        with args.corpus.open("rb") as file:
            head = file.read(CORPUS_BYTES)
        text.write_bytes(head[: head.rfind(b"\n") + 1])
        for seed in range(args.seeds):
            for method in args.methods:
                run = run_method(folder, text, method, steps=args.steps, seed=seed)
                runs.setdefault(method, run)
                for metric, value in figures(run).items():
                    found[method, metric].append(value)
        rows = [
            Row(method, "lmworks", metric, Spread.of(values))
            for (method, metric), values in found.items()
        ]
        print_rows(rows)
        draw(runs, PICTURE)
    save_result(
        "moe_balance",
        title=f"{args.steps} steps of 1,024 tokens, 2 layers of 16 experts, by balancing method",
        command="python benchmarks/moe/balance.py " + " ".join(["CORPUS", *argv[1:]]),
        rows=rows,
        packages=["torch"],
    )
    write_table()


if __name__ == "__main__":
    main(sys.argv[1:])
