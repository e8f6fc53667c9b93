"""A whole layer compiles into one graph: no size depends on what was chosen.

In a process of its own, because the checks of shapes that the other tests run under do not compile.
"""

import subprocess
import sys

import pytest

from lmworks.train.compile import compiler

SCRIPT = """
import torch
from lmworks.nn.config import MoEConfig
from lmworks.nn.moe.layer import MoE

torch.set_num_threads(1)
config = MoEConfig.model_validate({values})
layer = MoE(config, d_model=16, use_bias=False, layer=0)
g = torch.Generator().manual_seed(0)
with torch.no_grad():
    for weight in layer.parameters():
        weight.normal_(0.0, 0.3, generator=g)
x = torch.randn(2, 8, 16, generator=g)
results = []
for forward in (layer.forward, torch.compile(layer.forward, fullgraph=True, dynamic=False)):
    layer.zero_grad()
    y, routing = forward(x)
    (y.square().sum() + routing.balance_loss + routing.z_loss).backward()
    results.append([y.detach(), *routing, *(p.grad.clone() for p in layer.parameters())])
for plain, compiled in zip(*results, strict=True):
    # The compiler rounds in another order: a few ulp (6e-8) of sums of 16 terms.
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-4)
"""

LAYERS = {
    "dropless": {"router": {"top_k": 2}, "balance": {"switch_weight": 0.1, "z_weight": 0.1}},
    "capacity": {"router": {"top_k": 2}, "capacity_factor": 1.0},
    "auction": {"router": {"kind": "auction"}},
}


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layer_equals_the_plain_one(name):
    script = SCRIPT.format(
        values={"d_ff": 16, "num_experts": 4, "num_shared_experts": 1} | LAYERS[name]
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
