"""`lmworks params` prints the counts of presets and recipes, and says what it does not know."""

import json
import subprocess
import sys

import pytest

from lmworks.base.errors import ConfigError
from lmworks.cli.params import main

FAST = ["--peak-gflops", "100"]


def figures(capsys, *argv: str) -> dict:
    assert main([*argv, *FAST, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_preset_is_counted(capsys):
    found = figures(capsys, "gpt2-small")
    assert found["num_params"] == sum(found["params"].values()) == 124_439_808
    assert found["flops_per_token_training"] == 3 * found["flops_per_token_forward"]
    assert found["num_tokens"] == 20 * 124_439_808


def test_time_is_tokens_times_flops_over_speed(capsys):
    found = figures(capsys, "tiny", "--tokens", "1e6", "--mfu", "0.25")
    expected = 1e6 * found["flops_per_token_training"] / (100e9 * 0.25)
    assert found["training_time_s"]["fp32"] == pytest.approx(expected)


def test_overrides_change_the_model(capsys):
    twice = figures(capsys, "tiny", "num_layers=8")["params"]["mlp"]
    assert twice == 2 * figures(capsys, "tiny")["params"]["mlp"]


def test_recipe_is_counted_with_its_own_batch_and_tokens(capsys, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "model: {preset: tiny}\n"
        "train: {steps: 10, batch_size: 6, micro_batch_size: 2, context_length: 128}\n"
    )
    found = figures(capsys, str(file), "train.steps=20")
    assert found["num_tokens"] == 20 * 6 * 128
    assert (found["micro_batch_size"], found["context_length"]) == (2, 128)
    assert figures(capsys, str(tmp_path)) == figures(capsys, str(file))


def test_tables_name_every_part(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["smollm2-135m", *FAST]) == 0
    text = capsys.readouterr().out
    for part in ["134,515,008", "KV cache", "optimizer moments", "100 GFLOP/s", "20 per parameter"]:
        assert part in text


def test_multi_token_prediction_is_counted_where_it_is_trained(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    mtp = ["tiny", "mtp.kind=sequential", "mtp.depth=2"]
    plain, found = figures(capsys, "tiny"), figures(capsys, *mtp)
    assert found["num_params"] == sum(found["params"].values()) > plain["num_params"]
    assert found["flops_per_token_forward"] == plain["flops_per_token_forward"]
    assert found["flops_per_token_training"] > 3 * plain["flops_per_token_forward"]
    assert main([*mtp, *FAST]) == 0
    text = capsys.readouterr().out
    for part in ["sequential, 2 x a block", "training only: 2 blocks and heads"]:
        assert part in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["gpt3"], "'gpt3' is neither a file nor a preset; presets: tiny"),
        (["nothing.yaml"], r"nothing\.yaml: no such file"),
        (["tiny", "num_layer=3"], "num_layer: no such key; did you mean 'num_layers'"),
        (["tiny", "--context", "257"], "--context 257 is longer than max_seq_len=256"),
        (["tiny", "--peak-gflops", "0"], "must be above 0"),
    ],
)
def test_wrong_argument_is_refused(argv, message):
    with pytest.raises(ConfigError, match=message):
        main(argv)


def test_without_measuring_there_is_no_torch():
    code = (
        "import sys; from lmworks.cli.params import main;"
        "main(['tiny', '--peak-gflops', '1', '--json']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
