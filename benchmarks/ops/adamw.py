"""One AdamW step beside torch.optim.AdamW, on the tensors of the seed recipe (22.7 M parameters).

    python benchmarks/ops/adamw.py [--rounds 15]

Contenders take turns in one process, each on its own tensors. `bytes_per_s` counts what a step must
move (28 bytes per float32 parameter) and stands beside a copy measured in the same run. For
bfloat16 parameters torch has no step with float32 masters: its contender updates float32 masters
from float32 copies of the gradients and copies the result back, as training loops do by hand.

One thread: CPU time of the thread, so that other jobs on the machine count less. Two: wall time.
Writes benchmarks/results/ops_adamw.json.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch.nn import Parameter

from lmworks.bench.harness import Row, Spread, print_rows, save_result, time_in_turn
from lmworks.ops import native
from lmworks.train.optim.adamw import AdamW
from lmworks.train.optim.clip import global_grad_norm
from lmworks.train.optim.config import AdamWConfig

LAYER_SHAPES = [(512, 512)] * 4 + [(1344, 512), (1344, 512), (512, 1344), (512,), (512,)]
SHAPES = [(10_000, 512), *LAYER_SHAPES * 4, (512,), (10_000, 512)]
BYTES_PER_PARAMETER = {torch.float32: 28, torch.bfloat16: 28}  # bfloat16: 2 less in, 2 more out


def make_params(dtype: torch.dtype) -> list[Parameter]:
    torch.manual_seed(0)
    params = [Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    for param in params:
        param.grad = torch.randn_like(param) * 1e-3
    return params


def make_contenders(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    mine, peers = make_params(dtype), make_params(dtype)
    ours = AdamW([(str(i), p) for i, p in enumerate(mine)], AdamWConfig())
    masters = [Parameter(p.detach().float()) for p in peers] if dtype != torch.float32 else peers
    groups = [
        {"params": [p for p in masters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in masters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.95), fused=True)

    def torch_step() -> None:
        if masters is not peers:
            for master, param in zip(masters, peers, strict=True):
                assert param.grad is not None, "set by make_params"
                master.grad = param.grad.float()
        fused.step()
        if masters is not peers:
            with torch.no_grad():
                torch._foreach_copy_(peers, masters)

    grads = [p.grad for p in peers if p.grad is not None]
    source = torch.randn(sum(p.numel() for p in mine))
    target = torch.empty_like(source)
    return {
        "lmworks": lambda: ours.step(lr=1e-5),
        "torch AdamW(fused=True)": torch_step,
        "roof: copy of one float32 set": lambda: target.copy_(source),
        "lmworks global_grad_norm": lambda: global_grad_norm(mine),
        "torch get_total_norm": lambda: torch.nn.utils.get_total_norm(grads).item(),
    }


def measure(dtype: torch.dtype, num_threads: int, rounds: int) -> list[Row]:
    """Milliseconds of each contender."""
    torch.set_num_threads(num_threads)
    clock = time.thread_time if num_threads == 1 else time.perf_counter
    metric = "cpu_ms" if num_threads == 1 else "wall_ms"

    times = time_in_turn(make_contenders(dtype), clock_s=clock, rounds=rounds)
    case = f"{str(dtype).removeprefix('torch.')}, {num_threads} thread" + "s" * (num_threads > 1)
    rows = [Row(case, name, metric, Spread.of(values)) for name, values in times.items()]
    num_params = sum(torch.Size(shape).numel() for shape in SHAPES)
    ours, peer = times["lmworks"], times["torch AdamW(fused=True)"]
    ratios = [theirs / mine for theirs, mine in zip(peer, ours, strict=True)]
    rows.append(Row(case, "lmworks beside torch", "times_faster", Spread.of(ratios)))
    step_bytes = BYTES_PER_PARAMETER[dtype] * num_params
    rows.append(Row(case, "lmworks", "gb_per_s", Spread.of([step_bytes / t / 1e6 for t in ours])))
    copy = times["roof: copy of one float32 set"]
    copied = [8 * num_params / t / 1e6 for t in copy]
    rows.append(Row(case, "roof: copy", "gb_per_s", Spread.of(copied)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    rows = [
        row
        for dtype in (torch.float32, torch.bfloat16)
        for num_threads in (1, 2)
        for row in measure(dtype, num_threads, rounds)
    ]
    print_rows(rows)
    path = save_result(
        "ops_adamw",
        title=f"AdamW step, 22.7 M parameters ({native.isa_name()} kernels)",
        command=f"python benchmarks/ops/adamw.py --rounds {rounds}",
        rows=rows,
        packages=["torch"],
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
