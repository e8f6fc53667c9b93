"""From next-token logits to a token: penalty, temperature, top-k, top-p, min-p, then one draw.

The filters are pure functions on logits; they put -inf where a token is ruled out and run in the
order that Hugging Face transformers uses (penalty, temperature, top-k, top-p, min-p). Decoding
itself is in `generate`.

Papers: top-k, Fan et al. 2018 (1805.04833); top-p, Holtzman et al. 2019 (1904.09751); min-p,
Nguyen et al. 2024 (2407.01082); repetition penalty, Keskar et al. 2019 (CTRL, 1909.05858, 4.1).

Shapes: B sequences, V vocabulary entries.
"""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Float64, Int
from pydantic import Field
from torch import Tensor

from lmworks.base.config import Config
from lmworks.base.errors import CheckpointError

NEG_INF = float("-inf")

# Candidates looked at first by top-p: sorting a whole 50k vocabulary costs 80 times as much, and
# the nucleus of a trained model rarely holds more.
_TOP_P_CANDIDATES = 256


class SamplingConfig(Config):
    """How tokens are chosen, and when to stop."""

    temperature: Annotated[float, Field(ge=0)] = 0.8
    """Logits are divided by it; 0 takes the most likely token (greedy), 1 changes nothing."""

    top_k: Annotated[int, Field(ge=0)] = 0
    """Keep the k most likely tokens and all that tie with the last of them; 0 keeps all."""

    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all."""

    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Keep tokens with at least this share of the most likely token's probability; 0 keeps all."""

    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    """Logits of tokens seen in the prompt or the answer are divided by it (multiplied where
    negative); above 1 discourages repetition, 1 changes nothing."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the draws: the same seed, prompt and model give the same text."""

    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Generation ends where one of these strings would be complete; the string is not part of the
    text. Empty: none."""

    stop_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Generation ends with any of these tokens, as with the tokenizer's end-of-text."""

    max_new_tokens: Annotated[int, Field(ge=1)] = 200
    """At most this many tokens are generated."""

    logprobs: bool = False
    """Also report each chosen token's log-probability under the unmodified model."""

    @property
    def is_greedy(self) -> bool:
        """True when every step takes the most likely token."""
        return self.temperature == 0


class Sampler:
    """Chooses one token per sequence and step. Holds the random state and the tokens seen so far.

    Sequence b draws from its own generator, seeded `config.seed + b`, so what it draws does not
    depend on how many sequences run beside it. Draws are made on the CPU whatever the device.
    """

    def __init__(
        self,
        config: SamplingConfig,
        prompt_ids: Sequence[int],
        *,
        vocab_size: int,
        num_sequences: int,
    ) -> None:
        self.config = config
        self._generators = [
            torch.Generator().manual_seed((config.seed + b) % 2**63) for b in range(num_sequences)
        ]
        self._seen_BV: Bool[Tensor, "B V"] | None = None
        if config.repetition_penalty != 1:
            self._seen_BV = torch.zeros(num_sequences, vocab_size, dtype=torch.bool)
            self._seen_BV[:, list(prompt_ids)] = True

    def choose(self, logits_BV: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
        """One token id per sequence; remembers it for the repetition penalty."""
        logits_BV = logits_BV.float()
        if self._seen_BV is not None:
            self._seen_BV = self._seen_BV.to(logits_BV.device)
            penalty = self.config.repetition_penalty
            logits_BV = penalize_repetition(logits_BV, self._seen_BV, penalty)
        if self.config.is_greedy:
            tokens_B = greedy(logits_BV)
        else:
            tokens_B = draw(filter_logits(logits_BV, self.config), self._uniform_B())
        if self._seen_BV is not None:
            self._seen_BV.scatter_(1, tokens_B[:, None], True)
        return tokens_B

    def _uniform_B(self) -> Float64[Tensor, " B"]:
        draws = [torch.rand((), generator=g, dtype=torch.float64) for g in self._generators]
        return torch.stack(draws)


def filter_logits(logits_BV: Float[Tensor, "B V"], config: SamplingConfig) -> Float[Tensor, "B V"]:
    """Temperature (which must not be 0) and the filters that are on, in order."""
    logits_BV = apply_temperature(logits_BV, config.temperature)
    if config.top_k:
        logits_BV = keep_top_k(logits_BV, config.top_k)
    if config.top_p < 1:
        logits_BV = keep_top_p(logits_BV, config.top_p)
    if config.min_p:
        logits_BV = keep_min_p(logits_BV, config.min_p)
    return logits_BV


def greedy(logits_BV: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
    """The most likely token; of several equally likely ones the lowest id."""
    best_B = logits_BV.amax(-1)
    _check_finite(best_B)
    # argmax alone may return any of several maxima
    return (logits_BV == best_B[:, None]).int().argmax(-1)


def draw(logits_BV: Float[Tensor, "B V"], uniform_B: Float64[Tensor, " B"]) -> Int[Tensor, " B"]:
    """The token at which the cumulative probability passes `uniform_B`, each in [0, 1).

    One random number per draw (inverse transform sampling), 60 times cheaper at V = 50k than
    torch.multinomial, which needs V of them.
    """
    mass_BV = logits_BV.softmax(-1).cumsum(-1, dtype=torch.float64)
    total_B = mass_BV[:, -1]
    _check_finite(total_B)
    # Rounding could lift the product to the total, past the last token that has any mass.
    wanted_B = torch.minimum(
        uniform_B.to(total_B.device) * total_B, torch.nextafter(total_B, torch.zeros_like(total_B))
    )
    return torch.searchsorted(mass_BV, wanted_B[:, None], right=True)[:, 0]


def apply_temperature(logits_BV: Float[Tensor, "B V"], temperature: float) -> Float[Tensor, "B V"]:
    """Logits divided by `temperature` > 0.

    The maximum is moved to 0 first, so that a tiny temperature cannot overflow.
    """
    return (logits_BV - logits_BV.amax(-1, keepdim=True)) / temperature


def keep_top_k(logits_BV: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """The k highest logits and those equal to the k-th; the rest become -inf."""
    kth_B1 = logits_BV.topk(min(k, logits_BV.shape[-1]), dim=-1).values[:, -1:]
    return logits_BV.masked_fill(logits_BV < kth_B1, NEG_INF)


def keep_top_p(logits_BV: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """The fewest most likely tokens whose probability reaches `p` (always one at least).

    Of tokens that tie at the border, those with the lowest ids are kept.
    """
    probs_BV = logits_BV.softmax(-1)
    vocab_size = probs_BV.shape[-1]
    num_candidates = min(_TOP_P_CANDIDATES, vocab_size)
    while True:
        top_BK = probs_BV.topk(num_candidates, dim=-1).values
        mass_BK = top_BK.cumsum(-1, dtype=torch.float64)
        if num_candidates == vocab_size or bool((mass_BK[:, -1] >= p).all()):
            break
        num_candidates = min(8 * num_candidates, vocab_size)
    # A token stays while the mass before it has not reached p.
    num_kept_B1 = 1 + (mass_BK[:, :-1] < p).sum(-1, keepdim=True)
    border_B1 = top_BK.gather(-1, num_kept_B1 - 1)
    above_BV = probs_BV > border_B1
    tied_BV = probs_BV == border_B1
    num_tied_kept_B1 = num_kept_B1 - above_BV.sum(-1, keepdim=True)
    kept_BV = above_BV | (tied_BV & (tied_BV.cumsum(-1) <= num_tied_kept_B1))
    return logits_BV.masked_fill(~kept_BV, NEG_INF)


def keep_min_p(logits_BV: Float[Tensor, "B V"], min_p: float) -> Float[Tensor, "B V"]:
    """Tokens whose probability is at least `min_p` times the highest; the rest become -inf."""
    border_B1 = logits_BV.amax(-1, keepdim=True) + math.log(min_p)
    return logits_BV.masked_fill(logits_BV < border_B1, NEG_INF)


def penalize_repetition(
    logits_BV: Float[Tensor, "B V"], seen_BV: Bool[Tensor, "B V"], penalty: float
) -> Float[Tensor, "B V"]:
    """Where `seen_BV`: positive logits divided by `penalty`, negative ones multiplied with it."""
    penalized_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(seen_BV, penalized_BV, logits_BV)


def _check_finite(value_B: Tensor) -> None:
    if not bool(value_B.isfinite().all()):
        raise CheckpointError(
            "the model's next-token logits hold NaN or no finite value, so no token can be chosen; "
            "its weights are broken (a diverged run?): use an earlier checkpoint"
        )
