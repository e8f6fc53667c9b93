"""`report.html`: one self-contained file that tells what a run was and how it went.

    path = write_report(RunFolder("runs/demo"))

Everything comes from the run folder (metrics.jsonl, recipe, environment, tokenizer, shard
manifests), so a report can be made of an unfinished run too. Plots are inline SVG whose ink follows
the page, light or dark. The layout is in `report.html.j2`.
"""

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from lmworks import tokenizer as tokenizers
from lmworks.base.config import load
from lmworks.base.errors import DataError
from lmworks.base.storage import write_text
from lmworks.data.shard import Manifest, read_manifest
from lmworks.models.config import ModelConfig
from lmworks.plan.memory import readable_bytes
from lmworks.plan.time import readable_time
from lmworks.tokenizer import Tokenizer
from lmworks.train.metrics import Record, read_metrics
from lmworks.train.prepare import read_environment, shard_folders
from lmworks.train.recipe import Recipe
from lmworks.train.report_plots import load_map, plots
from lmworks.train.run_folder import RunFolder

_TEMPLATE = Path(__file__).with_name("report.html.j2")
_NUM_LONGEST_TOKENS = 24


def write_report(run: RunFolder) -> Path:
    """Write `report.html` into the run folder and return its path.

    Raises:
        DataError: the run has no metrics yet.
        ConfigError: matplotlib is not installed.
    """
    run.require_prepared()
    records = read_metrics(run.path)
    by_kind = {
        kind: [record for record in records if record["kind"] == kind]
        for kind in ("train", "routing", "eval", "sample", "event")
    }
    if not by_kind["train"]:
        raise DataError(f"{run.path}: no training step is logged yet, so there is nothing to show")
    recipe = load(Recipe, run.recipe).config
    environment = read_environment(run)
    tokenizer = tokenizers.load(run.tokenizer)
    jinja = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = jinja.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    page = template.render(
        name=run.path.resolve().name,
        facts=_facts(recipe, by_kind),
        plots=plots(by_kind),
        load_map=load_map(by_kind["routing"], recipe.model),
        samples=_samples(by_kind["sample"]),
        tokenizer_rows=_tokenizer_rows(run, recipe, tokenizer),
        longest_tokens=_longest_tokens(tokenizer),
        model_rows=_model_rows(recipe),
        machine_rows=_machine_rows(environment),
        recipe_rows=_recipe_rows(recipe, environment["sources"]),
        events=[(record["step"], record["event"]) for record in by_kind["event"]],
    )
    write_text(run.report, page)
    return run.report


def _facts(recipe: Recipe, by_kind: dict[str, list[Record]]) -> list[tuple[str, str, str]]:
    """(label, value, remark) of the headline figures."""
    steps, evals = by_kind["train"], by_kind["eval"]
    last = steps[-1]
    speeds = sorted(record["tokens_per_s"] for record in steps)
    mfus = sorted(record["mfu"] for record in steps)
    best = min(evals, key=lambda record: record["loss"]) if evals else None
    facts = []
    if best is not None:
        facts += [
            (
                "held-out loss",
                f"{best['loss']:.3f}",
                f"nats per token, best, step {best['step']:,}",
            ),
            ("bits per byte", f"{best['bits_per_byte']:.3f}", "of held-out text, same step"),
        ]
    else:
        facts.append(("training loss", f"{last['loss']:.3f}", "nats per token, last step"))
    total = recipe.train.total_steps
    return [
        *facts,
        ("parameters", readable_count(recipe.model.num_params()), _active(recipe.model)),
        ("tokens", readable_count(last["tokens"]), f"{last['step']:,} of {total:,} steps"),
        ("speed", f"{speeds[len(speeds) // 2]:,.0f}", "tokens per second, median"),
        ("MFU", f"{mfus[len(mfus) // 2]:.1%}", "of the matrix-multiply peak, median"),
        ("time", readable_time(last["elapsed_s"]), "evaluation and checkpoints included"),
    ]


def _active(model: ModelConfig) -> str:
    active = model.num_active_params()
    if active == model.num_params():
        return "trained weights"
    return f"{readable_count(active)} of them used per token"


def _samples(records: list[Record]) -> list[tuple[int, list[tuple[str, str]]]]:
    """(step, [(prompt, continuation)]), newest first."""
    by_step: dict[int, list[tuple[str, str]]] = {}
    for record in records:
        by_step.setdefault(record["step"], []).append((record["prompt"], record["text"]))
    return sorted(by_step.items(), reverse=True)


def _tokenizer_rows(run: RunFolder, recipe: Recipe, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    rows = [
        ("kind", tokenizer.kind),
        ("vocabulary", f"{tokenizer.vocab_size:,} tokens"),
        ("special tokens", ", ".join(tokenizer.special_tokens) or "none"),
    ]
    for label, folder in zip(("training", "held-out"), shard_folders(run, recipe), strict=True):
        manifest: Manifest = read_manifest(folder)
        rows.append(
            (
                f"{label} text",
                f"{manifest.num_tokens:,} tokens, {manifest.text_bytes:,} bytes, "
                f"{manifest.num_documents:,} documents, "
                f"{manifest.bytes_per_token:.2f} bytes per token",
            )
        )
    return rows


def _longest_tokens(tokenizer: Tokenizer) -> list[str]:
    """The tokens that stand for the most bytes, as text with visible spaces."""
    special = set(tokenizer.special_tokens.values())
    tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size) if i not in special]
    longest = sorted(tokens, key=lambda token: (-len(token), token))[:_NUM_LONGEST_TOKENS]
    texts = [token.decode("utf-8", errors="replace") for token in longest if len(token) > 1]
    return [text.replace(" ", "·").replace("\n", "↵") for text in texts]


def _model_rows(recipe: Recipe) -> list[tuple[str, str]]:
    model = recipe.model
    flops = model.flops_per_token(recipe.train.context_length, training=True)
    total = model.num_params()
    rows = [
        (part, f"{count:,} ({count / total:.0%})")
        for part, count in model.param_counts().items()
        if count
    ]
    return [
        ("parameters", f"{total:,}"),
        *rows,
        ("arithmetic", f"{flops / 1e6:,.1f} MFLOP per token and training step"),
    ]


def _machine_rows(environment: dict[str, Any]) -> list[tuple[str, str]]:
    machine, git = environment["hardware"], environment["git"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    changed = git and (" with uncommitted changes" if git["is_changed"] else "")
    return [
        ("processor", f"{machine['cpu']}, {machine['instruction_set']}"),
        ("threads", f"{machine['threads']} of {machine['cores']} usable cores"),
        ("memory", readable_bytes(machine["memory_bytes"])),
        ("system", machine["os"]),
        ("versions", versions),
        ("git", f"{git['commit'][:12]}{changed}" if git else "not in a repository"),
        ("started", environment["started"]),
        ("command", " ".join(environment["command"])),
    ]


def _recipe_rows(recipe: Recipe, sources: dict[str, str]) -> list[tuple[str, str, str]]:
    """(key, value, source) of every value of the resolved recipe."""
    return list(_flat_rows(recipe.model_dump(mode="json"), sources, ""))


def _flat_rows(
    values: dict[str, Any], sources: dict[str, str], prefix: str
) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            rows += _flat_rows(value, sources, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            rows.append((prefix + key, text, sources.get(prefix + key, "default")))
    return rows


def readable_count(count: int) -> str:
    """Three digits and a unit: 4.26 M, 512 K, 87."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if count >= size:
            scaled = count / size
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f}{unit}"
    return str(count)
