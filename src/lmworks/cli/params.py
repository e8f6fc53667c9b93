"""`lmworks params RECIPE|PRESET`: parameters, FLOPs, memory and expected time, before training."""

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lmworks.base.config import load, suggest
from lmworks.base.errors import ConfigError
from lmworks.cli.parser import make_parser
from lmworks.models.config import ModelConfig
from lmworks.models.presets import PRESET_NAMES
from lmworks.nn.config import AnyAttentionConfig, FeedForwardConfig
from lmworks.plan.attention_cost import attention_costs
from lmworks.plan.hardware import Hardware, Precision
from lmworks.plan.memory import OptimizerKind, readable_bytes, training_bytes
from lmworks.plan.shape_advisor import shape_advice
from lmworks.plan.time import TOKENS_PER_PARAM, readable_time, training_time_s

DEFAULT_MFU = 0.25
"""What benchmarks/training/step.py reaches; large models on quiet machines reach more."""
PROBE_BUDGET_S = 0.1
"""Time for measuring each number format; torch's import takes far longer."""
ATTENTION_NOTE = """\
  prefill: FLOPs of scores and weighted values / bytes of queries, keys, values and outputs
  decode: the same of the last query / bytes of the cache that it reads; nearly the query heads per
  key-value head, and twice the heads under MLA. Below what the chip does per byte moved (an H100:
  295) memory sets the pace: a smaller cache is then a faster decoder."""
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


@dataclass(frozen=True)
class Job:
    """What is to be trained: a model and the sizes of its training."""

    name: str
    model: ModelConfig
    num_tokens: int
    tokens_origin: str
    """Where `num_tokens` comes from, for the reader."""
    context_length: int
    batch_size: int
    micro_batch_size: int
    optimizer: OptimizerKind
    recomputes: bool


def main(argv: list[str]) -> int:
    """Print the tables, or JSON."""
    args = _parser().parse_args(argv)
    if args.presets:
        _print_presets(as_json=args.json)
        return 0
    if args.what is None:
        raise ConfigError("params needs a recipe or preset; --presets lists the presets")
    job = _job(args.what, args.overrides, args)
    hardware = _hardware(args)
    if args.json:
        print(json.dumps(_figures(job, hardware, args.mfu), indent=2))
    else:
        _print_tables(job, hardware, args.mfu)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "params",
        "Parameters, FLOPs per token, memory and expected training time of a recipe or preset. "
        "Trains nothing; measures this machine's matrix-multiply speed for a moment.",
        "lmworks params gpt2-small num_layers=6 --batch-size 4",
    )
    add = parser.add_argument
    add("what", nargs="?", metavar="RECIPE|PRESET", help="recipe, run, preset or model")
    add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="change a value: model.num_layers=8 for a recipe, num_layers=8 for a preset",
    )
    add("--presets", action="store_true", help="list the presets with their sizes")
    add("--tokens", type=_count, help="tokens to train on (default: the recipe's, or 20/parameter)")
    add("--context", type=_count, help="tokens per sequence (default: the recipe's or model's)")
    add("--batch-size", type=_count, help="sequences held at once (default: the recipe's, or 8)")
    add("--mfu", type=_share, default=DEFAULT_MFU, help="share of the peak reached (default 0.25)")
    add("--peak-gflops", type=_number, help="matrix-multiply speed, instead of measuring it")
    add("--json", action="store_true", help="print the figures as JSON")
    return parser


def _job(what: str, overrides: Sequence[str], args: argparse.Namespace) -> Job:
    if what in PRESET_NAMES:
        return _preset_job(what, overrides, args)
    path = Path(what)
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{what!r} is neither a file nor a preset{suggest(what, PRESET_NAMES)}")
    if path.suffix == ".gguf" or (path / "config.json").is_file():
        return _model_job(path, overrides, args)
    return _recipe_job(path / "recipe.yaml" if path.is_dir() else path, overrides, args)


def _model_job(path: Path, overrides: Sequence[str], args: argparse.Namespace) -> Job:
    """A model that is there already, as if it were to be trained anew."""
    from lmworks.models.pretrained import load_config

    if overrides:
        raise ConfigError(f"{overrides[0]}: values of the model in {path} cannot be changed")
    return _job_of(path.name, load_config(path), args)


def _preset_job(name: str, overrides: Sequence[str], args: argparse.Namespace) -> Job:
    return _job_of(name, load(ModelConfig, None, [f"preset={name}", *overrides]).config, args)


def _job_of(name: str, model: ModelConfig, args: argparse.Namespace) -> Job:
    batch_size = args.batch_size or 8
    return Job(
        name=name,
        model=model,
        num_tokens=args.tokens or TOKENS_PER_PARAM * model.num_params(),
        tokens_origin="--tokens" if args.tokens else f"{TOKENS_PER_PARAM} per parameter",
        context_length=_checked_context(args.context or model.max_seq_len, model),
        batch_size=batch_size,
        micro_batch_size=batch_size,
        optimizer="adamw",
        recomputes=False,
    )


def _recipe_job(file: Path, overrides: Sequence[str], args: argparse.Namespace) -> Job:
    from lmworks.train.recipe import load_recipe

    recipe = load_recipe(file, overrides).config
    train = recipe.train
    return Job(
        name=recipe.name,
        model=recipe.model,
        num_tokens=args.tokens or train.total_steps * train.tokens_per_step,
        tokens_origin="--tokens" if args.tokens else f"{train.total_steps:,} steps",
        context_length=_checked_context(args.context or train.context_length, recipe.model),
        batch_size=args.batch_size or train.batch_size,
        micro_batch_size=args.batch_size or train.micro_batch_size,
        optimizer=recipe.optim.kind,
        recomputes=train.activation_checkpointing == "full",
    )


def _hardware(args: argparse.Namespace) -> Hardware:
    from lmworks.base.machine import read_machine

    machine = read_machine()
    if args.peak_gflops is not None:
        if args.peak_gflops <= 0:
            raise ConfigError(f"--peak-gflops {args.peak_gflops}: must be above 0")
        peaks = dict.fromkeys(PRECISIONS, args.peak_gflops * 1e9)
    else:
        peaks = _measured_peaks()
    return Hardware(machine.cpu_model, machine.num_cores, machine.memory_bytes, peaks)


def _measured_peaks() -> dict[Precision, float]:
    import torch

    from lmworks.train.accelerate import gemm_flops_per_s

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return {p: gemm_flops_per_s(dtypes[p], budget_s=PROBE_BUDGET_S) for p in PRECISIONS}


def _memory(job: Job, precision: Precision) -> dict[str, int]:
    return training_bytes(
        job.model,
        precision=precision,
        optimizer=job.optimizer,
        micro_batch_size=job.micro_batch_size,
        context_length=job.context_length,
        accumulates=job.micro_batch_size < job.batch_size,
        recomputes=job.recomputes,
    )


def _time_s(job: Job, hardware: Hardware, precision: Precision, mfu: float) -> float:
    return training_time_s(
        num_tokens=job.num_tokens,
        flops_per_token=job.model.flops_per_token(job.context_length, training=True),
        peak_flops_per_s=hardware.peak_flops_per_s[precision],
        mfu=mfu,
    )


def _figures(job: Job, hardware: Hardware, mfu: float) -> dict[str, object]:
    model, context = job.model, job.context_length
    return {
        "name": job.name,
        "num_params": model.num_params(),
        "params": model.param_counts(),
        "context_length": context,
        "flops_per_token_forward": model.flops_per_token(context, training=False),
        "flops_per_token_training": model.flops_per_token(context, training=True),
        "flops_per_token_training_causal": model.flops_per_token(
            context, training=True, causal=True
        ),
        "kv_cache_bytes_per_token_bf16": model.kv_cache_bytes_per_token(2),
        "kv_cache_bytes_full_bf16": model.kv_cache_bytes(model.max_seq_len, 2),
        "micro_batch_size": job.micro_batch_size,
        "training_bytes": {p: _memory(job, p) for p in PRECISIONS},
        "num_tokens": job.num_tokens,
        "peak_flops_per_s": hardware.peak_flops_per_s,
        "mfu": mfu,
        "training_time_s": {p: _time_s(job, hardware, p, mfu) for p in PRECISIONS},
        "attention": [asdict(cost) for cost in attention_costs(model, context_length=context)],
        "advice": [asdict(advice) for advice in shape_advice(model, context_length=context)],
    }


def _print_tables(job: Job, hardware: Hardware, mfu: float) -> None:
    from rich.console import Console

    console = Console()
    for title, rows in [
        (f"{job.name}: parameters", _param_rows(job.model)),
        (f"FLOPs per token, context {job.context_length:,}", _flops_rows(job)),
        (f"memory, {job.micro_batch_size} x {job.context_length:,} tokens", _memory_rows(job)),
        ("time on this machine", _time_rows(job, hardware, mfu)),
    ]:
        console.print(_table(title, rows))
    console.print(_attention_table(job))
    console.print(ATTENTION_NOTE, style="dim", highlight=False)
    for advice in shape_advice(job.model, context_length=job.context_length):
        console.print(
            f"[yellow]shape:[/] [bold]{advice.setting}[/] is {advice.found}, known to be good: "
            f"{advice.good}\n  {advice.reason} [dim]({advice.source})[/]",
            highlight=False,
            soft_wrap=True,
        )


def _print_presets(*, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    models = {name: ModelConfig.preset(name) for name in PRESET_NAMES}
    if as_json:
        figures = {
            name: {"num_params": m.num_params(), "num_active_params": m.num_active_params()}
            for name, m in models.items()
        }
        print(json.dumps(figures, indent=2))
        return
    table = Table("preset", box=None, padding=(0, 2))
    for heading in ("parameters", "per token", "layers", "d_model", "context", "KV/token, bf16"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, model in models.items():
        table.add_row(
            name,
            _readable_count(model.num_params()),
            _readable_count(model.num_active_params()),
            f"{model.num_layers}",
            f"{model.d_model:,}",
            f"{model.max_seq_len:,}",
            readable_bytes(model.kv_cache_bytes_per_token(2)),
        )
    Console().print(table)


def _table(title: str, rows: list[tuple[str, str, str]]) -> object:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def _attention_table(job: Job) -> object:
    from rich.table import Table

    table = Table(
        title=f"attention, context {job.context_length:,}, bf16, one sequence",
        title_justify="left",
        box=None,
        padding=(0, 2),
    )
    table.add_column("", no_wrap=True)
    for name in ("cache/token", "cache, full", "prefill FLOP/B", "decode FLOP/B"):
        table.add_column(name, justify="right", no_wrap=True, header_style="dim")
    table.add_column("cached per layer", style="dim", header_style="dim")
    for cost in attention_costs(job.model, context_length=job.context_length):
        table.add_row(
            cost.name,
            readable_bytes(cost.cache_bytes_per_token),
            readable_bytes(cost.cache_bytes),
            f"{cost.prefill_flops_per_byte:,.0f}",
            f"{cost.decode_flops_per_byte:,.1f}",
            cost.shape,
        )
    return table


def _param_rows(model: ModelConfig) -> list[tuple[str, str, str]]:
    d, layers = model.d_model, model.layer_counts()
    has_biases = model.use_bias or any(
        kind.attention.kind == "gqa" and kind.attention.qkv_bias for kind, _ in layers
    )
    formulas = {
        "embedding": f"vocab_size x d_model = {model.vocab_size:,} x {d:,}",
        "position": _position_formula(model),
        "attention": _by_kind([(_attention_formula(kind.attention, d), n) for kind, n in layers])
        + (" + biases" if has_biases else ""),
        "mlp": _by_kind([(_mlp_formula(kind.mlp, d), n) for kind, n in layers])
        + (" + biases" if model.use_bias else ""),
        "norms": f"{model.norm.kind}, {model.norm_position}",
        "head": "is the embedding" if model.tie_embeddings else "vocab_size x d_model",
        "mtp": f"{model.mtp.kind}, {model.mtp.depth} x a block and what joins it",
    }
    rows = [(part, f"{n:,}", formulas[part]) for part, n in model.param_counts().items()]
    total, active = model.num_params(), model.num_active_params()
    return [
        *rows,
        ("total", f"{total:,}", _readable_count(total)),
        ("active", f"{active:,}", f"{_readable_count(active)} that one token uses"),
    ]


def _by_kind(formulas: list[tuple[str, int]]) -> str:
    """What each layer has, with the layers of equal kinds counted together."""
    counts: Counter[str] = Counter()
    for formula, count in formulas:
        counts[formula] += count
    return " + ".join(
        f"{count} layer{'s' if count > 1 else ''} x {formula}" for formula, count in counts.items()
    )


def _position_formula(model: ModelConfig) -> str:
    if model.position.kind == "learned":
        return "max_seq_len x d_model"
    return "num_buckets x num_heads" if model.t5_tables() else "no weights"


def _attention_formula(attention: AnyAttentionConfig, d_model: int) -> str:
    """Elements of the matrices of one layer."""
    if attention.kind == "mla":
        ranks = f"q {attention.q_rank:,}, kv {attention.kv_rank:,}"
        heads = f"{attention.num_heads} heads of {attention.nope_dim} + {attention.rope_dim}"
        return f"latents of {ranks} for {heads}"
    return f"2 x {d_model:,} x ({attention.d_query:,} + {attention.d_kv:,})"


def _mlp_formula(mlp: FeedForwardConfig, d_model: int) -> str:
    """Elements of the matrices of one layer."""
    matrices = f"{mlp.num_matrices} x {d_model:,} x {mlp.d_ff:,}"
    if mlp.kind == "dense":
        return matrices
    shared = f" + {mlp.num_shared_experts}" if mlp.num_shared_experts else ""
    return f"({mlp.num_experts}{shared}) experts x {matrices} + router"


def _flops_rows(job: Job) -> list[tuple[str, str, str]]:
    model, context = job.model, job.context_length
    formulas = {
        "attention projections": "2 per weight",
        "attention scores and values": "2 x keys that the last token sees x (q + v widths)",
        "mlp": "2 per weight that a token uses",
        "head": "2 vocab_size d_model",
        "multi-token prediction": f"training only: {model.mtp.depth} blocks and heads",
    }
    parts = model.flops_parts(context)
    trained = model.flops_parts(context, training=True)
    rows = [(part, _readable_flops(n), formulas[part]) for part, n in trained.items()]
    training = model.flops_per_token(context, training=True)
    causal = model.flops_per_token(context, training=True, causal=True)
    return [
        *rows,
        ("forward", _readable_flops(sum(parts.values())), "sum; a multiply-add is 2"),
        ("training", _readable_flops(training), "3 x forward: the MFU's FLOPs"),
        ("training, causal", _readable_flops(causal), "keys that a query may see"),
    ]


def _memory_rows(job: Job) -> list[tuple[str, str, str]]:
    notes = {
        "weights": "4 or 2 bytes per parameter",
        "gradients": "as weights; 4 if accumulated",
        "master weights": "4 bytes per parameter",
        "optimizer moments": f"{job.optimizer}, fp32",
        "activations": "one block at a time" if job.recomputes else "for backward, uncompiled",
    }
    fp32, bf16 = _memory(job, "fp32"), _memory(job, "bf16")
    rows = [("", "     fp32 /      bf16", "")]
    rows += [(part, _pair(fp32[part], bf16[part]), notes[part]) for part in fp32]
    cache = job.model.kv_cache_bytes_per_token(4), job.model.kv_cache_bytes_per_token(2)
    full = job.model.max_seq_len
    full_cache = job.model.kv_cache_bytes(full, 4), job.model.kv_cache_bytes(full, 2)
    return [
        *rows,
        ("training", _pair(sum(fp32.values()), sum(bf16.values())), "sum"),
        ("KV cache per token", _pair(*cache), "keys and values of all layers"),
        ("KV cache, full", _pair(*full_cache), f"{full:,} tokens, or what a window sees of them"),
    ]


def _time_rows(job: Job, hardware: Hardware, mfu: float) -> list[tuple[str, str, str]]:
    rows = [
        ("tokens", f"{job.num_tokens:,}", job.tokens_origin),
        ("machine", f"{hardware.num_cores} cores", hardware.name),
    ]
    for precision in PRECISIONS:
        peak = hardware.peak_flops_per_s[precision]
        formula = f"tokens x FLOPs / ({peak / 1e9:,.0f} GFLOP/s x {mfu:.0%} MFU)"
        seconds = _time_s(job, hardware, precision, mfu)
        rows.append((f"training, {precision}", readable_time(seconds), formula))
    return rows


def _pair(fp32: int, bf16: int) -> str:
    return f"{readable_bytes(fp32):>9} / {readable_bytes(bf16):>9}"


def _readable_count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.2f} M"


def _readable_flops(flops: int) -> str:
    return f"{flops / 1e9:,.2f} G" if flops >= 1e9 else f"{flops / 1e6:,.2f} M"


def _checked_context(context_length: int, model: ModelConfig) -> int:
    if context_length > model.max_seq_len:
        raise ConfigError(
            f"--context {context_length} is longer than max_seq_len={model.max_seq_len}"
        )
    return context_length


def _count(text: str) -> int:
    """A positive count; 5e9 is fine."""
    number = _number(text)
    if not 1 <= number < math.inf or number != int(number):
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return int(number)


def _share(text: str) -> float:
    share = _number(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return share


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number") from None
