"""Sampling filters against numpy references, transformers' processors and expected frequencies."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError

from lmworks.base.config import load
from lmworks.base.errors import CheckpointError, ConfigError
from lmworks.serve import sampling
from lmworks.serve.sampling import Sampler, SamplingConfig

INF = float("inf")

# Few distinct values make ties common; -inf is a logit that an earlier filter ruled out.
VALUES = st.one_of(
    st.sampled_from([-INF, -2.0, 0.0, 0.5, 3.0]), st.floats(-30, 30, width=32, allow_nan=False)
)
LOGITS = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 3), st.integers(1, 12)), elements=VALUES
).filter(lambda x: bool(np.isfinite(x).any(-1).all()))
PROBABILITIES = st.floats(1e-6, 0.999)


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def kept(filtered: torch.Tensor) -> np.ndarray:
    return np.isfinite(filtered.numpy())


@given(LOGITS, st.integers(1, 15))
def test_top_k_keeps_the_k_highest_and_their_ties(logits: np.ndarray, k: int) -> None:
    out = sampling.keep_top_k(torch.from_numpy(logits), k).numpy()
    for row, got in zip(logits, out, strict=True):
        border = np.sort(row)[::-1][min(k, len(row)) - 1]
        np.testing.assert_array_equal(got, np.where(row >= border, row, -INF))


@given(LOGITS, PROBABILITIES)
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits: np.ndarray, p: float) -> None:
    probs = torch.from_numpy(logits).softmax(-1).numpy()
    out = sampling.keep_top_p(torch.from_numpy(logits), p).numpy()
    for row, prob, got in zip(logits, probs, out, strict=True):
        order = np.argsort(-prob, kind="stable")
        mass = np.cumsum(prob[order].astype(np.float64))
        count = 1 + int((mass[:-1] < p).sum())
        want = np.full_like(row, -INF)
        want[order[:count]] = row[order[:count]]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.999])
def test_top_p_looks_past_its_first_candidates(p: float) -> None:
    vocab_size = 5 * sampling._TOP_P_CANDIDATES
    logits = torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(0)) * 0.1
    out = sampling.keep_top_p(logits, p)
    for prob, mask in zip(logits.softmax(-1).double(), kept(out), strict=True):
        inside = prob[torch.from_numpy(mask)]
        assert inside.sum() >= p
        assert inside.sum() - inside.min() < p
        assert mask.all() or inside.min() >= prob[torch.from_numpy(~mask)].max()


def test_top_p_keeps_exactly_the_needed_number_of_equal_tokens() -> None:
    out = sampling.keep_top_p(torch.zeros(1, 8), 0.5)
    assert kept(out).tolist() == [[True] * 4 + [False] * 4]


def test_a_tiny_top_p_keeps_the_most_likely_token() -> None:
    out = sampling.keep_top_p(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 1e-9)
    assert kept(out).tolist() == [[False, True, False, False]]


@given(LOGITS, st.floats(1e-6, 1.0))
def test_min_p_is_relative_to_the_most_likely_token(logits: np.ndarray, min_p: float) -> None:
    mask = kept(sampling.keep_min_p(torch.from_numpy(logits), min_p))
    probs = softmax(logits.astype(np.float64))
    ratio = probs / probs.max(-1, keepdims=True)
    assert mask[ratio > min_p * (1 + 1e-5)].all()
    assert not mask[ratio < min_p * (1 - 1e-5)].any()


@given(LOGITS, st.floats(0.1, 5.0), st.data())
def test_repetition_penalty_divides_positive_and_multiplies_negative_logits(
    logits: np.ndarray, penalty: float, data: st.DataObject
) -> None:
    seen = data.draw(hnp.arrays(np.bool_, logits.shape))
    out = sampling.penalize_repetition(torch.from_numpy(logits), torch.from_numpy(seen), penalty)
    factor = np.float32(penalty)
    want = np.where(seen, np.where(logits > 0, logits / factor, logits * factor), logits)
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-6)


@given(LOGITS, st.floats(0.05, 10.0))
def test_temperature_divides_logits_up_to_a_constant(logits: np.ndarray, t: float) -> None:
    out = sampling.apply_temperature(torch.from_numpy(logits), t).softmax(-1)
    want = softmax(logits.astype(np.float64) / t)
    np.testing.assert_allclose(out.numpy(), want, atol=1e-4)


def test_a_tiny_temperature_does_not_overflow() -> None:
    config = SamplingConfig(temperature=1e-38)
    filtered = sampling.filter_logits(torch.tensor([[90.0, 80.0, -100.0]]), config)
    assert sampling.draw(filtered, torch.tensor([0.99], dtype=torch.float64)).tolist() == [0]


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    assert sampling.greedy(torch.tensor([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]])).tolist() == [1, 0]


@given(LOGITS, st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_token_where_the_cumulative_mass_passes_u(
    logits: np.ndarray, u: float
) -> None:
    uniform = torch.full((len(logits),), u, dtype=torch.float64)
    tokens = sampling.draw(torch.from_numpy(logits), uniform).numpy()
    probs = torch.from_numpy(logits).softmax(-1).numpy().astype(np.float64)
    for prob, token in zip(probs, tokens, strict=True):
        mass = np.cumsum(prob)
        assert prob[token] > 0
        assert mass[token] - prob[token] <= u * mass[-1] + 1e-12
        assert u * mass[-1] <= mass[token] + 1e-12


def test_the_largest_uniform_number_never_draws_a_token_without_mass() -> None:
    logits = torch.tensor([[0.0, 1.0, -INF, -INF]])
    uniform = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert sampling.draw(logits, uniform).tolist() == [1]


def frequencies(config: SamplingConfig, logits: torch.Tensor, num_draws: int) -> np.ndarray:
    sampler = Sampler(config, [], vocab_size=len(logits), num_sequences=1)
    draws = [int(sampler.choose(logits[None])) for _ in range(num_draws)]
    return np.bincount(draws, minlength=len(logits))


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"temperature": 2.0}, [0, 1, 2, 3, 4]),
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_p": 0.6}, [0, 1]),
        ({"min_p": 0.3}, [0, 1]),
    ],
)
def test_draws_follow_the_filtered_distribution(options: dict, allowed: list[int]) -> None:
    # p = 0.5, 0.25, 0.125, 0.0625, 0.0625 at temperature 1
    logits = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625]).log()
    config = SamplingConfig(**{"temperature": 1.0, "seed": 11, **options})
    num_draws = 4000
    counts = frequencies(config, logits, num_draws)
    probs = softmax(logits.numpy() / config.temperature)
    want = np.array([p if i in allowed else 0.0 for i, p in enumerate(probs)])
    want = want / want.sum() * num_draws
    assert counts[want == 0].sum() == 0
    chi_square = float((((counts - want) ** 2)[want > 0] / want[want > 0]).sum())
    # 99.9 % quantile for 4 degrees of freedom; the seed is fixed, so this cannot flicker
    assert chi_square < 18.5


def test_equal_logits_are_drawn_uniformly() -> None:
    counts = frequencies(SamplingConfig(temperature=0.3, seed=3), torch.zeros(10), 5000)
    assert float(((counts - 500) ** 2 / 500).sum()) < 27.9  # 99.9 %, 9 degrees of freedom


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_vocabulary_of_one_token_gives_that_token(temperature: float) -> None:
    config = SamplingConfig(
        temperature=temperature, top_k=5, top_p=0.1, min_p=0.9, repetition_penalty=2.0
    )
    sampler = Sampler(config, [0], vocab_size=1, num_sequences=1)
    assert sampler.choose(torch.tensor([[-4.0]])).tolist() == [0]


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    logits = torch.zeros(1000)

    def tokens(seed: int) -> list[int]:
        sampler = Sampler(SamplingConfig(seed=seed), [], vocab_size=1000, num_sequences=1)
        return [int(sampler.choose(logits[None])) for _ in range(20)]

    assert tokens(5) == tokens(5)
    assert tokens(5) != tokens(6)


def test_a_sequence_draws_the_same_alone_and_in_a_batch() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    config = SamplingConfig(seed=7, temperature=1.5)
    batch = Sampler(config, [], vocab_size=50, num_sequences=3)
    alone = Sampler(config.model_copy(update={"seed": 9}), [], vocab_size=50, num_sequences=1)
    for _ in range(10):
        assert batch.choose(logits.expand(3, -1))[2] == alone.choose(logits)[0]


def test_the_global_random_state_is_neither_read_nor_moved() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    Sampler(SamplingConfig(), [], vocab_size=9, num_sequences=1).choose(torch.zeros(1, 9))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_penalty_counts_prompt_and_generated_tokens() -> None:
    config = SamplingConfig(temperature=0, repetition_penalty=10.0)
    sampler = Sampler(config, [0], vocab_size=4, num_sequences=1)
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    assert [int(sampler.choose(logits)) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), -INF])
def test_logits_without_a_finite_value_are_refused(temperature: float, value: float) -> None:
    sampler = Sampler(SamplingConfig(temperature=temperature), [], vocab_size=3, num_sequences=1)
    with pytest.raises(CheckpointError, match="earlier checkpoint"):
        sampler.choose(torch.full((1, 3), value))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"max_new_tokens": 0},
        {"stop": ("",)},
        {"seed": -1},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        SamplingConfig(**wrong)


def test_a_misspelt_option_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        load(SamplingConfig, None, ["temprature=1"])


# ---- transformers' own processors ----


def hf_processor(name: str, value: float):
    processors = pytest.importorskip("transformers.generation.logits_process")
    return getattr(processors, name)(value)


@pytest.mark.parametrize(
    ("name", "option", "ours"),
    [
        ("TemperatureLogitsWarper", 0.7, sampling.apply_temperature),
        ("TopKLogitsWarper", 5, sampling.keep_top_k),
        ("TopPLogitsWarper", 0.8, sampling.keep_top_p),
        ("MinPLogitsWarper", 0.2, sampling.keep_min_p),
    ],
)
def test_filters_equal_those_of_transformers(name: str, option: float, ours) -> None:
    theirs = hf_processor(name, option)
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(2)) * 2
    torch.testing.assert_close(
        ours(logits, option).softmax(-1), theirs(None, logits.clone()).softmax(-1)
    )


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.floats(0.3, 3.0))
def test_repetition_penalty_equals_that_of_transformers(seed: int, penalty: float) -> None:
    theirs = hf_processor("RepetitionPenaltyLogitsProcessor", penalty)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 20, generator=generator)
    ids = torch.randint(0, 20, (1, 9), generator=generator)
    seen = torch.zeros(1, 20, dtype=torch.bool).scatter_(1, ids, True)
    ours = sampling.penalize_repetition(logits, seen, penalty)
    torch.testing.assert_close(ours, theirs(ids, logits.clone()))
