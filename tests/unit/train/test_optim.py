"""Optimizers against torch.optim, their state, and the masters of bfloat16 parameters."""

import pytest
import torch
from torch import nn

from lmworks.base.errors import CheckpointError, ConfigError
from lmworks.ops.dispatch import use_kernels
from lmworks.train.optim import Muon, build_optimizer
from lmworks.train.optim.clip import clip_scale, global_grad_norm
from lmworks.train.optim.config import AdamWConfig, MuonConfig, SGDConfig

CONFIGS = [AdamWConfig(), SGDConfig(weight_decay=0.1), SGDConfig(nesterov=True), MuonConfig()]
BETAS = (0.9, 0.95)


class Toy(nn.Module):
    """Names as in the decoder: an embedding, two hidden matrices, a norm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.up = nn.Linear(8, 24, bias=False)
        self.down = nn.Linear(24, 8)
        self.norm = nn.LayerNorm(8)


def set_grads(model, step, dtype=None):
    generator = torch.Generator().manual_seed(step)
    for param in model.parameters():
        param.grad = torch.randn(param.shape, generator=generator).to(dtype or param.dtype)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        set_grads(model, step)
        optimizer.step(lr=1e-2)


def torch_twin(config, model):
    """torch.optim's optimizers for the same config; matrices decay, vectors do not."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    match config:
        case AdamWConfig():
            return [torch.optim.AdamW(groups, lr=1e-2, betas=BETAS)]
        case SGDConfig():
            return [torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=config.nesterov)]
        case MuonConfig():
            hidden = [model.up.weight, model.down.weight]
            groups[0]["params"] = [model.embed.weight]
            return [
                torch.optim.Muon(hidden, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
                torch.optim.AdamW(groups, lr=1e-2, betas=BETAS),
            ]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
def test_100_steps_of_the_reference_equal_torch_optim(config):
    mine, peer = Toy(), Toy()
    optimizer, twins = build_optimizer(config, mine.named_parameters()), torch_twin(config, peer)
    with use_kernels("reference"):
        train(mine, optimizer, 100)
    for step in range(100):
        set_grads(peer, step)
        for twin in twins:
            twin.step()
    for got, want in zip(mine.parameters(), peer.parameters(), strict=True):
        # Same operations; foreach may order two roundings differently in each of 100 steps.
        torch.testing.assert_close(got, want, rtol=0, atol=100 * 2**-23)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_state_continues_bit_equal(config, dtype):
    straight = Toy().to(dtype)
    optimizer = build_optimizer(config, straight.named_parameters())
    train(straight, optimizer, 3)
    saved = {name: tensor.clone() for name, tensor in optimizer.state_tensors().items()}
    resumed = Toy().to(dtype)
    resumed.load_state_dict(straight.state_dict())
    train(straight, optimizer, 3, first=3)

    restored = build_optimizer(config, resumed.named_parameters())
    restored.load_state_tensors(saved)
    train(resumed, restored, 3, first=3)
    for got, want in zip(resumed.parameters(), straight.parameters(), strict=True):
        assert torch.equal(got, want)
    for name, tensor in optimizer.state_tensors().items():
        assert torch.equal(restored.state_tensors()[name], tensor)


def test_state_names_are_flat_and_stable():
    optimizer = build_optimizer(AdamWConfig(), Toy().bfloat16().named_parameters())
    names = optimizer.state_tensors().keys()
    assert {"step", "exp_avg.up.weight", "exp_avg_sq.norm.bias", "master.embed.weight"} <= names


def test_float32_parameters_are_their_own_masters():
    model = Toy()
    optimizer = build_optimizer(AdamWConfig(), model.named_parameters())
    assert not any(name.startswith("master.") for name in optimizer.state_tensors())
    assert optimizer.master_weights()["up.weight"].data_ptr() == model.up.weight.data_ptr()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
def test_a_bfloat16_parameter_follows_its_master(config):
    model = Toy().bfloat16()
    optimizer = build_optimizer(config, model.named_parameters())
    train(model, optimizer, 3)
    masters = optimizer.master_weights()
    for name, param in model.named_parameters():
        assert masters[name].dtype == torch.float32
        assert torch.equal(param, masters[name].bfloat16())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
def test_grad_scale_equals_scaled_gradients_and_leaves_them(config):
    scaled, plain = Toy(), Toy()
    set_grads(scaled, 0)
    before = scaled.up.weight.grad.clone()
    build_optimizer(config, scaled.named_parameters()).step(lr=1e-2, grad_scale=0.5)
    set_grads(plain, 0)
    for param in plain.parameters():
        param.grad *= 0.5
    build_optimizer(config, plain.named_parameters()).step(lr=1e-2)
    assert torch.equal(scaled.up.weight.grad, before)
    for got, want in zip(scaled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
def test_a_parameter_without_gradient_is_left_alone(config):
    model = Toy()
    before = model.up.weight.clone()
    optimizer = build_optimizer(config, model.named_parameters())
    set_grads(model, 0)
    model.up.weight.grad = None
    optimizer.step(lr=1e-2)
    assert torch.equal(model.up.weight, before)


@pytest.mark.parametrize(("decay", "vector", "matrix"), [("matrices", 1.0, 0.9), ("all", 0.9, 0.9),
                                                         ("none", 1.0, 1.0)])  # fmt: skip
def test_the_decay_rule_chooses_what_shrinks(decay, vector, matrix):
    params = {"m": nn.Parameter(torch.ones(2, 2)), "v": nn.Parameter(torch.ones(2))}
    optimizer = build_optimizer(AdamWConfig(weight_decay=1.0, decay=decay), params.items())
    for param in params.values():
        param.grad = torch.zeros_like(param)
    optimizer.step(lr=0.1)
    assert params["m"].mean().item() == pytest.approx(matrix)
    assert params["v"].mean().item() == pytest.approx(vector)


def test_muon_takes_hidden_matrices_only():
    names = Muon(Toy().named_parameters(), MuonConfig()).state_tensors().keys()
    assert {n for n in names if n.startswith("momentum.")} == {
        "momentum.up.weight", "momentum.down.weight",
    }  # fmt: skip
    assert "exp_avg.embed.weight" in names


def test_muon_updates_stacked_matrices_as_each_alone():
    generator = torch.Generator().manual_seed(0)
    weight, grad = torch.randn(2, 5, 12, 8, generator=generator)
    stack, alone = {"experts": nn.Parameter(weight.clone())}, {}
    for index in range(5):
        alone[f"expert{index}"] = nn.Parameter(weight[index].clone())
        alone[f"expert{index}"].grad = grad[index].clone()
    stack["experts"].grad = grad
    for params in (stack, alone):
        Muon(params.items(), MuonConfig()).step(lr=0.1)
    # Products of bf16 may round differently in a batch: 2^-8 of an update of about 0.1 * 0.7.
    for index in range(5):
        torch.testing.assert_close(
            stack["experts"][index], alone[f"expert{index}"], rtol=0, atol=2e-3
        )
    assert not torch.allclose(stack["experts"], weight, atol=1e-2)


def test_frozen_parameters_are_left_out():
    model = Toy()
    model.embed.weight.requires_grad_(False)
    optimizer = build_optimizer(AdamWConfig(), model.named_parameters())
    assert "embed.weight" not in optimizer.master_weights()


def test_an_optimizer_without_parameters_is_refused():
    with pytest.raises(ConfigError, match="no trainable parameter"):
        build_optimizer(AdamWConfig(), [])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop("exp_avg.up.weight"), "missing exp_avg.up.weight"),
        (lambda s: s.update(extra=torch.ones(1)), "unexpected extra"),
        (lambda s: s.update({"exp_avg.up.weight": torch.ones(3)}), r"\(3,\).*needs \(24, 8\)"),
        (lambda s: s.update(step=torch.zeros(())), "torch.float32"),
    ],
)
def test_a_state_of_another_model_is_refused_before_anything_changes(spoil, message):
    model = Toy()
    optimizer = build_optimizer(AdamWConfig(), model.named_parameters())
    saved = {name: torch.full_like(t, 7) for name, t in optimizer.state_tensors().items()}
    spoil(saved)
    with pytest.raises(CheckpointError, match=message):
        optimizer.load_state_tensors(saved)
    assert not any(tensor.any() for tensor in optimizer.state_tensors().values())


def test_zero_grad_drops_the_gradients():
    model = Toy()
    set_grads(model, 0)
    build_optimizer(AdamWConfig(), model.named_parameters()).zero_grad()
    assert all(param.grad is None for param in model.parameters())


def test_the_gradient_norm_runs_over_all_parameters_together():
    model = Toy()
    set_grads(model, 0)
    want = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
    model.extra = nn.Parameter(torch.ones(3))
    assert global_grad_norm(model.parameters()) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(("norm", "want"), [(0.0, 1.0), (0.5, 1.0), (4.0, 0.25)])
def test_clipping_only_shrinks(norm, want):
    assert clip_scale(norm, max_norm=1.0) == want


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_clipping_a_norm_that_is_not_finite_is_refused(norm):
    with pytest.raises(ValueError, match=f"gradient norm is {norm}"):
        clip_scale(norm, max_norm=1.0)


def test_reading_the_settings_needs_no_torch():
    import subprocess
    import sys

    code = (
        "import sys, lmworks.train.optim.config, lmworks.train.optim, lmworks.train.schedule;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
