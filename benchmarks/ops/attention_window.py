"""Attention under a window beside torch's kernel with the same mask as a matrix, and plain causal.

    python benchmarks/ops/attention_window.py [--rounds 5]

Forward, and forward with backward, of one sequence; 8 query heads, 2 key-value heads of 64.
`windowed` is `ops.attention` with the mask of `layer_mask`, built anew each time as a model does
once for all its layers. `masked` is scaled_dot_product_attention with a T x T mask, `causal` the
same with none: every query then reads all earlier keys. CPU time of one thread.
Writes benchmarks/results/ops_attention_window.json.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lmworks.bench.harness import Row, Spread, print_rows, save_result, time_in_turn
from lmworks.nn.attention.mask import KeySpan, layer_mask, visible
from lmworks.nn.config import WindowMaskConfig
from lmworks.ops.attention import attention

HEADS, KV_HEADS, DIM = 8, 2, 64
LENGTHS = (2048, 4096, 8192)
WINDOW = WindowMaskConfig(size=512)


def random_qkv(num_tokens: int, dtype: torch.dtype) -> list[Tensor]:
    """Laid out as the model does: heads next to each other in memory."""
    torch.manual_seed(0)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    draws = [torch.randn(1, num_tokens, n, DIM).to(dtype).transpose(1, 2) for n in heads]
    return [draw.requires_grad_() for draw in draws]


def make_contenders(num_tokens: int, dtype: torch.dtype) -> dict[str, Callable[[], Tensor]]:
    q, k, v = random_qkv(num_tokens, dtype)
    index = torch.arange(num_tokens)
    matrix = visible(WINDOW, index, index)

    def windowed() -> Tensor:
        mask = layer_mask(WINDOW, num_tokens, KeySpan(0, 0, num_tokens), q.device)
        return attention(q, k, v, mask=mask)

    def masked() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=matrix, enable_gqa=True)

    def causal() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return {"windowed": windowed, "masked": masked, "causal": causal}


def with_backward(run: Callable[[], Tensor]) -> Callable[[], None]:
    return lambda: torch.autograd.backward(run().sum())


def without_gradients(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return torch.no_grad()(run)


def measure(num_tokens: int, dtype: torch.dtype, rounds: int) -> list[Row]:
    """Milliseconds of each contender, and how many times as fast the window is."""
    rows = []
    contenders = make_contenders(num_tokens, dtype)
    for step, wrap in (("forward", without_gradients), ("forward, backward", with_backward)):
        wrapped = {name: wrap(run) for name, run in contenders.items()}
        times = time_in_turn(wrapped, clock_s=time.thread_time, rounds=rounds)
        case = f"{str(dtype).removeprefix('torch.')}, {num_tokens} tokens, {step}"
        rows += [Row(case, name, "cpu_ms", Spread.of(values)) for name, values in times.items()]
        for peer in ("masked", "causal"):
            pairs = zip(times[peer], times["windowed"], strict=True)
            ratios = Spread.of([theirs / ours for theirs, ours in pairs])
            rows.append(Row(case, f"windowed beside {peer}", "times_faster", ratios))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    rows = [
        row
        for dtype in (torch.float32, torch.bfloat16)
        for num_tokens in LENGTHS
        for row in measure(num_tokens, dtype, rounds)
    ]
    print_rows(rows)
    path = save_result(
        "ops_attention_window",
        title=f"Attention under a window of {WINDOW.size} tokens",
        command=f"python benchmarks/ops/attention_window.py --rounds {rounds}",
        rows=rows,
        packages=["torch"],
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
