"""Head + cross-entropy, forward and backward, beside torch: values to gradients of both inputs.

    python benchmarks/ops/linear_cross_entropy.py [--rounds 9]

4,096 tokens, d_model 512, vocabulary 10,000 (the seed recipe with 16 x 256 tokens). Contenders take
turns in one process, with gradients dropped between turns as between two training steps. Two roofs
are measured beside them: the three matrix products alone, in the kernel's own chunks and buffers,
and a copy of all logits chunk by chunk, which moves the bytes of the loss pass.

One thread: CPU time of the thread, so that other jobs on the machine count less. Two: wall time.
Writes benchmarks/results/ops_linear_cross_entropy.json.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lmworks.bench.harness import Row, Spread, print_rows, save_result, time_in_turn
from lmworks.ops import native
from lmworks.ops.linear_cross_entropy import linear_cross_entropy
from lmworks.ops.linear_cross_entropy.cpu import chunk_tokens

TOKENS, D_MODEL, VOCAB_SIZE = 4096, 512, 10_000
PRODUCT_FLOPS = 3 * 2 * TOKENS * D_MODEL * VOCAB_SIZE


def make_contenders(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Name -> one training step's worth of work."""
    torch.manual_seed(0)
    hidden_NC = torch.randn(TOKENS, D_MODEL).to(dtype).requires_grad_()
    weight_VC = (torch.randn(VOCAB_SIZE, D_MODEL) / D_MODEL**0.5).to(dtype).requires_grad_()
    targets_N = torch.randint(0, VOCAB_SIZE, (TOKENS,))

    def train(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def step() -> None:
            hidden_NC.grad = weight_VC.grad = None
            loss().backward()

        return step

    def ours() -> Tensor:
        terms = linear_cross_entropy(hidden_NC, weight_VC, targets_N)
        return terms.loss_sum + terms.z_loss_sum

    def plain() -> Tensor:
        logits_NV = F.linear(hidden_NC, weight_VC).float()
        return F.cross_entropy(logits_NV, targets_N, reduction="sum")

    def torch_fused() -> Tensor:
        return F.linear_cross_entropy(
            hidden_NC,
            weight_VC,
            targets_N,
            reduction="sum",
            options=torch.nn.LinearCrossEntropyOptions(),
        )

    return {
        "lmworks": train(ours),
        "F.cross_entropy, float logits": train(plain),
        "F.linear_cross_entropy, chunked": train(torch_fused),
        **_roofs(hidden_NC.detach(), weight_VC.detach(), targets_N),
    }


def _roofs(
    hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor
) -> dict[str, Callable[[], object]]:
    size = chunk_tokens(TOKENS, VOCAB_SIZE, hidden_NC.element_size())
    logits, copy = torch.randn(2, size, VOCAB_SIZE).to(hidden_NC.dtype)
    grad_hidden_KC, grad_weight_VC = torch.empty_like(hidden_NC[:size]), torch.empty_like(weight_VC)
    losses, z_losses = torch.empty(2, size)
    starts = range(0, TOKENS, size)
    native.load()

    def products() -> None:
        for start in starts:
            hidden_KC = hidden_NC[start : start + size]
            torch.mm(hidden_KC, weight_VC.T, out=copy)
            torch.mm(logits, weight_VC, out=grad_hidden_KC)
            torch.addmm(grad_weight_VC, logits.T, hidden_KC, out=grad_weight_VC)

    def loss_pass() -> None:
        for start in starts:
            torch.ops.lmworks.cross_entropy_rows_(
                logits, targets_N[start : start + size], losses, z_losses, -100, 0.0, 0.0, True
            )

    def copies() -> None:
        for _ in starts:
            copy.copy_(logits)

    return {
        "roof: three matrix products": products,
        "part: native loss pass": loss_pass,
        "roof: copy of all logits": copies,
    }


def measure(dtype: torch.dtype, num_threads: int, rounds: int) -> list[Row]:
    """Milliseconds of each contender."""
    torch.set_num_threads(num_threads)
    clock = time.thread_time if num_threads == 1 else time.perf_counter
    metric = "cpu_ms" if num_threads == 1 else "wall_ms"

    times = time_in_turn(make_contenders(dtype), clock_s=clock, rounds=rounds)
    case = f"{str(dtype).removeprefix('torch.')}, {num_threads} thread" + "s" * (num_threads > 1)
    rows = [Row(case, name, metric, Spread.of(values)) for name, values in times.items()]
    ours = times["lmworks"]
    for peer in ("F.cross_entropy, float logits", "F.linear_cross_entropy, chunked"):
        ratios = [theirs / mine for theirs, mine in zip(times[peer], ours, strict=True)]
        rows.append(Row(case, f"lmworks beside {peer}", "times_faster", Spread.of(ratios)))
    rates = [PRODUCT_FLOPS / value / 1e6 for value in ours]
    rows.append(Row(case, "lmworks", "gflop_per_s", Spread.of(rates)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    rows = [
        row
        for dtype in (torch.bfloat16, torch.float32)
        for num_threads in (1, 2)
        for row in measure(dtype, num_threads, rounds)
    ]
    print_rows(rows)
    path = save_result(
        "ops_linear_cross_entropy",
        title=f"Head + cross-entropy, forward and backward ({native.isa_name()} kernels): "
        f"{TOKENS} tokens, d_model {D_MODEL}, vocabulary {VOCAB_SIZE}",
        command=f"python benchmarks/ops/linear_cross_entropy.py --rounds {rounds}",
        rows=rows,
        packages=["torch"],
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
