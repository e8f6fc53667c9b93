"""One mixture-of-experts layer, forward and backward, beside transformers' blocks.

    python benchmarks/moe/layer.py [--rounds 5] [--threads 1 2] [--blocks Mixtral DeepSeek-V3]

64 experts of width 256, 6 per token, d_model 512, 4,096 tokens: Mixtral's block, and DeepSeek-V3's
with one shared expert. Same weights, tokens new in every round (so that, as in training, every
round has other loads), gradients dropped between rounds. Contenders take turns in one process:
transformers' experts as its models choose them (`grouped_mm`), and as the block alone comes
(`eager`, a loop). Its third way, `batched_mm`, copies the weights for every pair of token and
expert, 39 GB here, and is not run. The roof is the nine matrix products of every expert alone, on
equal loads, into memory that is there.

One thread: CPU time. More: wall time, for which the machine must be idle. Writes
benchmarks/results/moe_layer.json; figures of blocks and threads that are not named stay there.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lmworks.bench.harness import Row, Spread, print_rows, replace_rows, save_result, time_in_turn
from lmworks.nn.config import MoEConfig
from lmworks.nn.moe.layer import MoE
from lmworks.ops import native

NUM_EXPERTS, TOP_K, D_MODEL, D_FF, TOKENS = 64, 6, 512, 256, 4096
SEQUENCES = 8
PRODUCT_FLOPS = 3 * 3 * 2 * TOKENS * TOP_K * D_MODEL * D_FF
SHARED_FLOPS = 3 * 3 * 2 * TOKENS * D_MODEL * D_FF
LMWORKS, GROUPED, EAGER = "lmworks", "transformers, grouped_mm", "transformers, eager"
ROOF = "roof: the matrix products"


def mixtral(implementation: str) -> nn.Module:
    """transformers' block with weights of its own."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=D_MODEL,
        intermediate_size=D_FF,
        num_local_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
    )
    return _with(MixtralSparseMoeBlock, config, implementation)


def deepseek_v3(implementation: str) -> nn.Module:
    """transformers' block with one shared expert, without limits to groups."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = DeepseekV3Config(
        hidden_size=D_MODEL,
        moe_intermediate_size=D_FF,
        n_routed_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
    )
    return _with(DeepseekV3MoE, config, implementation)


def _with(block: Callable[[Any], nn.Module], config: Any, implementation: str) -> nn.Module:
    config._experts_implementation = implementation
    module = block(config)
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.02, generator=generator)
    return module


OURS = {
    "Mixtral": {"top_k": TOP_K},
    "DeepSeek-V3": {"top_k": TOP_K, "score": "sigmoid", "scale": 2.5, "selection_bias": True},
}
PEERS = {"Mixtral": mixtral, "DeepSeek-V3": deepseek_v3}


def ours(name: str, peer: nn.Module) -> nn.Module:
    """Our layer with the weights of a peer's block."""
    config = MoEConfig.model_validate(
        {
            "d_ff": D_FF,
            "num_experts": NUM_EXPERTS,
            "num_shared_experts": 1 if name == "DeepSeek-V3" else 0,
            "router": OURS[name],
            "balance": {"switch_weight": 0.0},
        }
    )
    layer = MoE(config, d_model=D_MODEL, use_bias=False, layer=0)
    theirs = dict(peer.named_parameters())
    gate, up = theirs["experts.gate_up_proj"].chunk(2, dim=1)
    values = {"gate": gate, "up": up, "down": theirs["experts.down_proj"]}
    targets = dict(layer.named_parameters())
    with torch.no_grad():
        targets["router.weight"].copy_(theirs["gate.weight"])
        for part, value in values.items():
            targets[f"experts.{part}"].copy_(value)
            if layer.shared is not None:
                shared = theirs[f"shared_experts.{part}_proj.weight"]
                targets[f"shared.{part}.weight"].copy_(shared)
    return layer


def inputs(dtype: torch.dtype) -> Iterator[Tensor]:
    """Tokens of one round after the other, the same for every contender."""
    generator = torch.Generator().manual_seed(1)
    while True:
        shape = (SEQUENCES, TOKENS // SEQUENCES, D_MODEL)
        yield torch.randn(shape, generator=generator).to(dtype).requires_grad_()


def step_of(module: nn.Module, rounds: Iterator[Tensor]) -> Callable[[], Tensor]:
    """One training step's worth of work; returns the output."""

    def step() -> Tensor:
        x = next(rounds)
        for weight in module.parameters():
            weight.grad = None
        y = module(x)
        output: Tensor = y[0] if isinstance(y, tuple) else y
        torch.autograd.backward(output, x.detach())
        return output.detach()

    return step


def make_contenders(name: str, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Name -> one step; all have computed the same output before."""
    make_peer = PEERS[name]
    grouped = make_peer("grouped_mm").to(dtype)
    modules = {
        LMWORKS: ours(name, grouped).to(dtype),
        GROUPED: grouped,
        EAGER: make_peer("eager").to(dtype),
    }
    streams = itertools.tee(inputs(dtype), len(modules))
    steps = {
        contender: step_of(module, stream)
        for (contender, module), stream in zip(modules.items(), streams, strict=True)
    }
    first = [step() for step in steps.values()]
    # In bf16 transformers rounds the logits of Mixtral's router, which flips some choices.
    for other in first[1:]:
        error = (other - first[0]).float().norm() / first[0].float().norm()
        assert error < (1e-5 if dtype == torch.float32 else 0.15), f"outputs differ by {error}"
    return {**steps, ROOF: products(dtype)}


def products(dtype: torch.dtype) -> Callable[[], None]:
    """The matrix products of all experts, forward and backward, on equal loads."""
    size = (NUM_EXPERTS, TOKENS * TOP_K // NUM_EXPERTS)
    x, grad = torch.randn(2, *size, D_MODEL).to(dtype)
    hidden, out = torch.randn(2, *size, D_FF).to(dtype)
    up, up_grad = torch.randn(2, NUM_EXPERTS, D_FF, D_MODEL).to(dtype)
    down, down_grad = torch.randn(2, NUM_EXPERTS, D_MODEL, D_FF).to(dtype)
    result = torch.empty_like(x[0])

    def run() -> None:
        for e in range(NUM_EXPERTS):
            for _ in ("gate", "up"):
                torch.mm(x[e], up[e].T, out=out[e])
                torch.mm(hidden[e].T, x[e], out=up_grad[e])
                torch.mm(hidden[e], up[e], out=result)
            torch.mm(hidden[e], down[e].T, out=result)
            torch.mm(grad[e], down[e], out=out[e])
            torch.mm(grad[e].T, hidden[e], out=down_grad[e])

    return run


def measure(name: str, dtype: torch.dtype, num_threads: int, rounds: int) -> list[Row]:
    """Milliseconds, ratios and the share of the roof."""
    torch.set_num_threads(num_threads)
    clock = time.thread_time if num_threads == 1 else time.perf_counter
    metric = "cpu_ms" if num_threads == 1 else "wall_ms"
    times = time_in_turn(make_contenders(name, dtype), clock_s=clock, rounds=rounds)
    threads = f"{num_threads} thread" + "s" * (num_threads > 1)
    case = f"{name}, {str(dtype).removeprefix('torch.')}, {threads}"
    rows = [Row(case, contender, metric, Spread.of(values)) for contender, values in times.items()]
    mine = times[LMWORKS]
    for peer in (EAGER, GROUPED):
        ratios = [theirs / own for theirs, own in zip(times[peer], mine, strict=True)]
        rows.append(Row(case, f"lmworks beside {peer}", "times_faster", Spread.of(ratios)))
    shares = [roof / own for roof, own in zip(times[ROOF], mine, strict=True)]
    flops = PRODUCT_FLOPS + (SHARED_FLOPS if name == "DeepSeek-V3" else 0)
    rates = [flops / value / 1e6 for value in mine]
    rows.append(Row(case, LMWORKS, "share_of_roof", Spread.of(shares)))
    rows.append(Row(case, LMWORKS, "gflop_per_s", Spread.of(rates)))
    return rows


def main() -> None:
    """Measure all and write the result file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--blocks", nargs="+", choices=PEERS, default=[*PEERS])
    arguments = parser.parse_args()
    rounds = arguments.rounds
    rows = [
        row
        for name, dtype, num_threads in itertools.product(
            arguments.blocks, (torch.float32, torch.bfloat16), arguments.threads
        )
        for row in measure(name, dtype, num_threads, rounds)
    ]
    print_rows(rows)
    path = save_result(
        "moe_layer",
        title=f"Mixture of experts, forward and backward ({native.isa_name()} kernels): "
        f"{NUM_EXPERTS} experts, {TOP_K} per token, d_model {D_MODEL}, expert d_ff {D_FF}, "
        f"{TOKENS} tokens",
        command=f"python benchmarks/moe/layer.py --rounds {rounds} --threads "
        + " ".join(map(str, arguments.threads)),
        rows=replace_rows("moe_layer", rows),
        packages=["torch", "transformers"],
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
