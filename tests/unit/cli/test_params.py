"""`lmworks params` prints the counts of presets and recipes, and says what it does not know."""

import json
import subprocess
import sys

import pytest

from lmworks.base.errors import ConfigError
from lmworks.cli.params import main
from lmworks.models.presets import PRESET_NAMES

FAST = ["--peak-gflops", "100"]


def figures(capsys, *argv: str) -> dict:
    assert main([*argv, *FAST, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_preset_is_counted(capsys):
    found = figures(capsys, "gpt2-small")
    assert found["num_params"] == sum(found["params"].values()) == 124_439_808
    assert found["flops_per_token_training"] == 3 * found["flops_per_token_forward"]
    assert found["num_tokens"] == 20 * 124_439_808


def test_presets_are_listed_with_their_sizes(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["--presets"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert set(PRESET_NAMES) < set(rows)
    assert rows["deepseek-v3"][1:8] == ["671.03", "B", "37.55", "B", "61", "7,168", "163,840"]
    assert main(["--presets", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["mixtral-8x7b"]
    assert counts == {"num_params": 46_702_792_704, "num_active_params": 12_879_925_248}


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


def test_layers_of_several_kinds_are_told_apart_and_equal_ones_counted_together(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["deepseek-moe-16b", *FAST]) == 0
    text = capsys.readouterr().out
    for part in [
        "28 layers x 2 x 2,048 x (2,048 + 2,048)",
        "1 layer x 3 x 2,048 x 10,944 + 27 layers x (64 + 2) experts x 3 x 2,048 x 1,408 + router",
        "16,375,728,128",
        "2.83 B that one token uses",
    ]:
        assert part in text


def test_latent_attention_is_described(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["deepseek-v3", "--context", "4096", *FAST]) == 0
    text = capsys.readouterr().out
    assert "61 layers x latents of q 1,536, kv 512 for 128 heads of 128 + 64" in text
    assert "37.55 B that one token uses" in text


def test_windows_bound_the_full_cache(capsys):
    found = figures(capsys, "gemma3-270m")
    per_token, full = found["kv_cache_bytes_per_token_bf16"], found["kv_cache_bytes_full_bf16"]
    # 3 of 18 layers see all 32,768 tokens, the others 512 and some to spare.
    assert 3 / 18 * per_token * 32768 < full < 3.5 / 18 * per_token * 32768


def test_odd_shapes_are_pointed_out_with_reason_and_source(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    argv = ["tiny", "attention.num_heads=8"]
    assert [item["setting"] for item in figures(capsys, *argv)["advice"]] == ["attention.head_dim"]
    assert figures(capsys, "tiny")["advice"] == []
    assert main([*argv, *FAST]) == 0
    text = capsys.readouterr().out
    assert "shape: attention.head_dim is 32, known to be good: 64 to 256" in text
    assert "low-rank bottleneck" in text
    assert "2002.07028" in text


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
        (["gpt2-smal"], "neither a file nor a preset; did you mean 'gpt2-small'"),
        (["zzz"], "'zzz' is neither a file nor a preset; known: deepseek-moe-16b, deepseek-v2"),
        ([], "params needs a recipe or preset; --presets lists the presets"),
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


def test_attention_is_compared_with_what_others_have(capsys):
    found = figures(capsys, "deepseek-v3", "--context", "4096")["attention"]
    costs = {cost["name"]: cost for cost in found}
    # 61 layers x (512 + 64) elements, DeepSeek-V2 (2405.04434), table 1; 2 FLOPs per cached element
    # and head twice for the latent, once for the turned key.
    assert costs["this model"]["cache_bytes_per_token"] == 61 * 576 * 2
    per_key, once = 128 * (2 * 512 + 64), 128 * (2 * 512 + 64)
    intensity = 2 * 4096 * per_key / (2 * (4096 * 576 + once))
    assert costs["this model"]["decode_flops_per_byte"] == pytest.approx(intensity)
    assert costs["MHA"]["decode_flops_per_byte"] == pytest.approx(1, rel=1e-3)
    assert {"MHA", "MQA", "MLA", "GQA, 4 per key", "MHA, window 1,024"} < set(costs)


def test_attention_table_shows_its_formulas(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["gemma3-1b", *FAST]) == 0
    text = capsys.readouterr().out
    for part in ["prefill FLOP/B", "2 x 1 x 256, 512 tokens", "MLA", "bytes of the cache"]:
        assert part in text
