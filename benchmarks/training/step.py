"""Training speed of recipes/seed_17m.yaml beside Hugging Face transformers' Llama of that shape.

    python benchmarks/training/step.py CORPUS [--steps 30] [--rounds 3]

Same tokens, same batches (16 x 256), same learning rate, AdamW with clipping, all cores. lmworks
runs through its command line, as a user would. transformers runs in bf16 autocast with SDPA and
torch's fused AdamW: once as it is, and once with torch.compile and tcmalloc preloaded, which must
be installed. Each run is a process of its own, in turn.

Reported: tokens/s (median over steps after warm-up), seconds from command to the end of the first
step (compilation cold: empty cache; warm: filled), and MFU against the bf16 matrix-multiply peak
measured in the same session.
"""

import argparse
import ctypes.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmworks.bench.harness import Row, Spread, interleave, print_rows, save_result
from lmworks.train.recipe import load_recipe

RECIPE = "recipes/seed_17m.yaml"
BATCH_SIZE, CONTEXT_LENGTH = 16, 256
WARM_UP_STEPS = 5
AUTO_STEPS = 330
CORPUS_BYTES = 20_000_000
COMMAND = [sys.executable, "-m", "lmworks.cli.main"]


def prepare(corpus: Path, folder: Path) -> None:
    """Tokenizer and shards of the head of the corpus."""
    text = folder / "text.txt"
    with corpus.open("rb") as file:
        head = file.read(CORPUS_BYTES)
    text.write_bytes(head[: head.rfind(b"\n") + 1])
    tokenizer = folder / "tokenizer.json"
    _run("tokenizer", "train", str(text), "--vocab-size", "10000", "--out", str(tokenizer))
    shards = str(folder / "shards")
    _run(
        "data", "pack", str(text), "--tokenizer", str(tokenizer), "--out", shards,
        "--val-fraction", "0.01",
    )  # fmt: skip


def _run(*arguments: str) -> None:
    subprocess.run([*COMMAND, *arguments], check=True, stdout=subprocess.DEVNULL)


# ---- ours ----


def lmworks(folder: Path, steps: int, compile_mode: str, cache: Path) -> dict[str, Any]:
    """One training run; figures from its metrics.jsonl."""
    run = folder / "run"
    command = [
        *COMMAND, "train", RECIPE, "--run", str(run), "--overwrite",
        "tokenizer={kind: file, path: " + str(folder / "tokenizer.json") + "}",
        "data={kind: shards, train: " + str(folder / "shards/train") + ", val: "
        + str(folder / "shards/val") + "}",
        f"train.steps={steps}", f"train.compile={compile_mode}", "schedule.warmup_steps=5",
        "eval.max_batches=1", "sample.prompts=[]",
    ]  # fmt: skip
    metrics = run / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    start_s = time.perf_counter()
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
    )
    first_s = None
    while first_s is None and child.poll() is None:
        time.sleep(0.01)
        if metrics.exists() and '"train"' in metrics.read_text():
            first_s = time.perf_counter() - start_s
    if child.wait() != 0 or first_s is None:
        raise SystemExit(f"lmworks failed: {' '.join(command)}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps_run = [line for line in lines if line["kind"] == "train"]
    return {
        "first_step_s": first_s,
        "tokens_per_s": [line["tokens_per_s"] for line in steps_run],
        "events": [line for line in lines if line["kind"] == "event"],
        "loss": steps_run[-1]["loss"],
    }


# ---- the peer (runs in a child: `step.py --child ...`) ----


def transformers_child(folder: Path, steps: int, is_compiled: bool) -> None:
    """Train and print one JSON line per step: seconds taken, loss."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from lmworks.data.loader import Loader
    from lmworks.data.shard import open_shards

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=10000, hidden_size=512, intermediate_size=1344, num_hidden_layers=4,
            num_attention_heads=16, max_position_embeddings=CONTEXT_LENGTH,
            attn_implementation="sdpa", tie_word_embeddings=False,
        )
    )  # fmt: skip
    forward = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    loader = Loader(
        open_shards(folder / "shards/train", tokenizer_fingerprint=None),
        batch_size=BATCH_SIZE, context_length=CONTEXT_LENGTH, seed=0, order="shuffled",
        separate_documents=False,
    )  # fmt: skip
    for _ in range(steps):
        start_s = time.perf_counter()
        batch = loader.next_batch()
        inputs, targets = torch.from_numpy(batch.inputs_BT), torch.from_numpy(batch.targets_BT)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = forward(input_ids=inputs, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits.float().flatten(0, 1), targets.flatten()
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps({"s": time.perf_counter() - start_s, "loss": loss.item()}), flush=True)


def transformers(folder: Path, steps: int, *, is_tuned: bool, cache: Path) -> dict[str, Any]:
    """Run the peer in a child; `is_tuned` adds torch.compile and tcmalloc."""
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    library = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    if is_tuned:
        if library is None:
            raise SystemExit(
                "error: the tuned peer needs tcmalloc: apt install libtcmalloc-minimal4"
            )
        env["LD_PRELOAD"] = library
    command = [sys.executable, __file__, "--child", str(folder), str(steps), str(int(is_tuned))]
    start_s = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert child.stdout is not None, "opened as a pipe"
    rows, first_s = [], 0.0
    for line in child.stdout:
        rows.append(json.loads(line))
        first_s = first_s or time.perf_counter() - start_s
    if child.wait() != 0:
        raise SystemExit("the transformers run failed")
    tokens = BATCH_SIZE * CONTEXT_LENGTH
    return {
        "first_step_s": first_s,
        "tokens_per_s": [tokens / row["s"] for row in rows],
        "loss": rows[-1]["loss"],
    }


def matmul_peak_flops_per_s() -> float:
    """bf16 `torch.mm` on the shapes of the step, all threads: the best of a second each."""
    import torch

    best = 0.0
    for m, k, n in ((4096, 512, 1344), (4096, 1344, 512), (4096, 512, 512), (2048, 2048, 2048)):
        a, b = torch.ones(m, k).bfloat16(), torch.ones(n, k).bfloat16()
        out, stop_s = torch.mm(a, b.T), time.perf_counter() + 1.0
        while time.perf_counter() < stop_s:
            start_s = time.perf_counter()
            torch.mm(a, b.T, out=out)
            best = max(best, 2 * m * k * n / (time.perf_counter() - start_s))
    return best


def main() -> None:
    """Run all contenders and write benchmarks/results/training_step.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(arguments.corpus, folder)
        rows = measure(folder, arguments.steps, arguments.rounds)
    print_rows(rows)
    save_result(
        "training_step",
        title="Training step, recipes/seed_17m.yaml",
        command="python benchmarks/training/step.py CORPUS",
        rows=rows,
        packages=["lmworks", "torch", "transformers"],
    )


def measure(folder: Path, steps: int, rounds: int) -> list[Row]:
    """All figures. A compiled contender's first round starts with an empty cache."""
    ours, peer = folder / "cache_ours", folder / "cache_peer"
    contenders: dict[str, Callable[[], dict[str, Any]]] = {
        "lmworks, uncompiled": lambda: lmworks(folder, steps, "off", ours),
        "transformers, eager": lambda: transformers(folder, steps, is_tuned=False, cache=peer),
        "lmworks, compiled": lambda: lmworks(folder, steps, "on", ours),
        "transformers, tuned": lambda: transformers(folder, steps, is_tuned=True, cache=peer),
    }
    results = defaultdict(list)
    for name, result in interleave(contenders, rounds=rounds):
        results[name].append(result)
        _say(name, result)
    peak = matmul_peak_flops_per_s()
    config = load_recipe(RECIPE, ["data.files=[x]"]).config.model
    flops_per_token = config.flops_per_token(CONTEXT_LENGTH, training=True)
    rows = [Row("bf16 matrix-multiply peak", "torch.mm", "gflop_per_s", Spread.of([peak / 1e9]))]
    for name, runs in results.items():
        speeds = [statistics.median(run["tokens_per_s"][WARM_UP_STEPS:]) for run in runs]
        mfu = [speed * flops_per_token / peak for speed in speeds]
        first = [run["first_step_s"] for run in runs]
        rows += [
            Row("training step", name, "tokens_per_s", Spread.of(speeds)),
            Row("training step", name, "mfu", Spread.of(mfu)),
            Row("first step, nothing cached", name, "s", Spread.of(first[:1])),
        ]
        if len(first) > 1:
            rows.append(Row("first step, cached", name, "s", Spread.of(first[1:])))
    return rows + out_of_the_box(folder)


def out_of_the_box(folder: Path) -> list[Row]:
    """One longer run as the recipe stands, nothing cached: it starts plain and changes over."""
    name = "lmworks"
    result = lmworks(folder, AUTO_STEPS, "auto", folder / "cache_auto")
    _say(name, result)
    speeds = result["tokens_per_s"]
    rows = [Row("first step, nothing cached", name, "s", Spread.of([result["first_step_s"]]))]
    switch = next((e["step"] for e in result["events"] if "compiled code" in e["event"]), None)
    if switch is None:
        print("the run was too short to compile", file=sys.stderr)
        return rows
    start = next(e["step"] for e in result["events"] if "on the side" in e["event"])
    tokens = BATCH_SIZE * CONTEXT_LENGTH
    wait_s = sum(tokens / speed for speed in speeds[:switch])
    parts = {"while compiling": speeds[start:switch], "after that": speeds[switch + 1 :]}
    return [
        *rows,
        Row("out of the box, until compiled", name, "s", Spread.of([wait_s])),
        *(
            Row(f"out of the box, {when}", name, "tokens_per_s", Spread.of(part))
            for when, part in parts.items()
        ),
    ]


def _say(name: str, result: dict[str, Any]) -> None:
    speed = statistics.median(result["tokens_per_s"][WARM_UP_STEPS:])
    print(
        f"{name}: {speed:.0f} tokens/s, first step after {result['first_step_s']:.1f} s, "
        f"last loss {result['loss']:.3f}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        transformers_child(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
    else:
        main()
