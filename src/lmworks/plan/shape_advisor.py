"""Which parts of a model's shape are outside what is known to work well, why, and who says so.

Each rule is a function of plain numbers with its known-good range, and is silent inside it. The
ranges hold the published presets; a warning is a question to ask, not an error: a study of odd
shapes is a fine reason to ignore it. No torch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lmworks.models.config import LayerConfig, ModelConfig
from lmworks.nn.config import AnyAttentionConfig, MLPConfig, MoEConfig


class Range(NamedTuple):
    """From `low` to `high`, both good."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Advice:
    """One thing about a shape that is worth a second thought."""

    setting: str
    """Dotted key of the config, or two of them."""
    found: str
    good: str
    """The known-good range, or the nearest good value."""
    reason: str
    source: str


ASPECT_RATIOS = Range(16, 256)
HEAD_DIMS = Range(64, 256)
FFN_RATIOS = Range(2, 8)
QUERIES_PER_KV_HEAD = Range(1, 16)
GRANULARITIES = Range(1, 64)
VOCABULARY_FACTORS = Range(1 / 8, 8)
TILE = 64
"""Elements: 128 bytes of bf16, what tensor cores and AMX tiles are filled with."""

_KAPLAN = "Kaplan et al. 2020, arXiv 2001.08361, figure 5"
_LEVINE = "Levine et al. 2020, arXiv 2006.12467, section 5"
_ANTHONY = "Anthony et al. 2024, arXiv 2401.14489, section VI"
_TAO = "Tao et al. 2024, arXiv 2407.13623"
_AINSLIE = "Ainslie et al. 2023, arXiv 2305.13245, section 3"
_KRAJEWSKI = "Krajewski et al. 2024, arXiv 2402.07871"


def shape_advice(config: ModelConfig, *, context_length: int) -> list[Advice]:
    """All that the rules say of `config`, trained on sequences of `context_length` tokens."""
    found = [
        aspect_ratio(config.d_model, config.num_layers),
        depth_for_width(config.d_model, config.num_layers),
        vocabulary_tiles(config.vocab_size),
        vocabulary_for_size(
            config.vocab_size, d_model=config.d_model, body_params=_body_params(config)
        ),
        tiles("d_model", config.d_model),
        window_reach(*_windows(config), context_length=context_length),
    ]
    for layer, _ in config.layer_counts():
        found += _layer_advice(layer, config.d_model, context_length)
    # Kinds of layers mostly share their sizes: said once is enough.
    return list(dict.fromkeys(advice for advice in found if advice is not None))


def aspect_ratio(d_model: int, num_layers: int) -> Advice | None:
    """d_model / num_layers: the loss hardly depends on it within an order of magnitude."""
    ratio = d_model / num_layers
    if ratio in ASPECT_RATIOS:
        return None
    problem = (
        "layers run one after the other, so deep and narrow is slow, and trains less stably"
        if ratio < ASPECT_RATIOS.low
        else "each token is worked on in few steps, and width alone makes up for that poorly"
    )
    return Advice(
        "d_model / num_layers", f"{ratio:.3g}", str(ASPECT_RATIOS), problem, f"{_KAPLAN}; {_LEVINE}"
    )


def depth_for_width(d_model: int, num_layers: int) -> Advice | None:
    """Depth beyond what the width can use: fitted as ln d_model = 5.039 + 0.0555 num_layers."""
    useful = (math.log(d_model) - 5.039) / 0.0555
    # Models of this size were in the fit; for narrow ones the formula says less than one layer.
    if d_model < 256 or num_layers <= 2 * useful:
        return None
    return Advice(
        "num_layers",
        str(num_layers),
        f"at most {2 * useful:.0f} at d_model {d_model:,}",
        "twice the depth from which on parameters do more in width",
        _LEVINE,
    )


def head_size(head_dim: int) -> Advice | None:
    """Elements of a query and key head."""
    if head_dim in HEAD_DIMS:
        return None
    problem = (
        "small heads tell few tokens apart (a low-rank bottleneck) and half fill the kernels' tiles"
        if head_dim < HEAD_DIMS.low
        else "fused attention kernels stop at 256, and fewer heads look at fewer places"
    )
    source = f"Bhojanapalli et al. 2020, arXiv 2002.07028; {_ANTHONY}"
    return Advice("attention.head_dim", str(head_dim), str(HEAD_DIMS), problem, source)


def kv_groups(num_heads: int, num_kv_heads: int) -> Advice | None:
    """Query heads that share a key-value head."""
    group = num_heads // num_kv_heads
    if group in QUERIES_PER_KV_HEAD:
        return None
    return Advice(
        "attention.num_kv_heads",
        f"{group} query heads each",
        str(QUERIES_PER_KV_HEAD),
        "quality falls towards multi-query attention, and its training is less stable",
        _AINSLIE,
    )


def ffn_ratio(active_d_ff: float, d_model: int) -> Advice | None:
    """Hidden width of the MLP (of all experts that a token uses together) over d_model."""
    ratio = active_d_ff / d_model
    if ratio in FFN_RATIOS:
        return None
    problem = (
        "too little of the layer is the MLP, where most of what a model knows is kept"
        if ratio < FFN_RATIOS.low
        else "the same parameters do more in further layers"
    )
    return Advice("mlp.d_ff / d_model", f"{ratio:.3g}", str(FFN_RATIOS), problem, _KAPLAN)


def expert_granularity(expert_d_ff: int, d_model: int) -> Advice | None:
    """How many experts a dense MLP of 4 d_model is cut into."""
    granularity = 4 * d_model / expert_d_ff
    if granularity in GRANULARITIES:
        return None
    problem = (
        "experts as large as a dense MLP are nearly never the best use of the same compute"
        if granularity < GRANULARITIES.low
        else "so small experts leave the router as the bottleneck, and products too small for tiles"
    )
    return Advice("mlp.d_ff", f"4 d_model / {expert_d_ff}", str(GRANULARITIES), problem, _KRAJEWSKI)


def vocabulary_tiles(vocab_size: int) -> Advice | None:
    """Rows of the largest matrix, the output head."""
    if vocab_size % TILE == 0 or vocab_size < 4 * TILE:
        return None
    return Advice(
        "vocab_size",
        f"{vocab_size:,}",
        f"{_next_multiple(vocab_size):,}",
        f"the head is no whole number of tiles of {TILE}; rows that no token has cost nothing else",
        _ANTHONY,
    )


def vocabulary_for_size(vocab_size: int, *, d_model: int, body_params: int) -> Advice | None:
    """Rows of the embedding, beside what compute-optimal training wants for that body.

    The fit is N_v proportional to N^0.83, with N the parameters that one token uses outside of
    embedding and head and N_v = d_model x 216,000 at Llama 2 70B.
    """
    best = 216_000 * 8192 / d_model * (body_params / 69e9) ** 0.83
    factor = vocab_size / best
    if factor in VOCABULARY_FACTORS:
        return None
    problem = (
        "rare tokens learn slowly, and embedding and head outweigh the layers"
        if factor > 1
        else "texts become long sequences of short tokens, which cost a model of this size more"
    )
    low, high = (_two_digits(best * bound) for bound in VOCABULARY_FACTORS)
    return Advice("vocab_size", f"{vocab_size:,}", f"{low:,} to {high:,}", problem, _TAO)


def tiles(setting: str, size: int) -> Advice | None:
    """A dim of a matrix product; small models fit in caches whatever it is."""
    if size % TILE == 0 or size < 2 * TILE:
        return None
    below, above = size // TILE * TILE, _next_multiple(size)
    return Advice(
        setting,
        f"{size:,}",
        f"{below:,} or {above:,}",
        f"the last tile of {TILE} in each row is computed in full and used in part",
        _ANTHONY,
    )


def window_reach(reaches: list[int], has_unbounded: bool, *, context_length: int) -> Advice | None:
    """How far back information can come through windows stacked on each other.

    `reaches`: of every windowed layer, in tokens before the reading one.
    """
    if has_unbounded or not reaches or sum(reaches) >= context_length - 1:
        return None
    return Advice(
        "attention.mask",
        f"{sum(reaches) + 1:,} tokens through {len(reaches)} layers",
        f"{context_length:,}",
        "no layer sees further than its window, so the start of the context cannot reach the end",
        "Jiang et al. 2023, arXiv 2310.06825, section 2",
    )


def window_size(max_visible: int, *, reach: int, context_length: int) -> Advice | None:
    """A window that hides nothing: it costs the mask's price and saves no key."""
    if max_visible < context_length:
        return None
    return Advice(
        "attention.mask",
        f"reaches {reach + 1:,} tokens",
        f"less than the context, {context_length:,}",
        "it hides nothing in sequences of this length; kind=full computes the same",
        "definition",
    )


def _layer_advice(layer: LayerConfig, d_model: int, context_length: int) -> Iterator[Advice | None]:
    yield from _attention_advice(layer.attention, context_length)
    if isinstance(layer.mlp, MoEConfig):
        yield from _moe_advice(layer.mlp, d_model)
    else:
        yield from _mlp_advice(layer.mlp, d_model)


def _attention_advice(
    attention: AnyAttentionConfig, context_length: int
) -> Iterator[Advice | None]:
    yield head_size(attention.head_dim)
    yield tiles("attention.num_heads x head_dim", attention.d_query)
    if attention.kind == "mla":
        yield tiles("attention.q_rank", attention.q_rank)
        yield tiles("attention.kv_rank", attention.kv_rank)
    else:
        yield kv_groups(attention.num_heads, attention.num_kv_heads)
        yield tiles("attention.num_kv_heads x head_dim", attention.d_kv)
    mask = attention.mask
    if mask.reach is not None:
        visible = mask.max_visible(context_length)
        yield window_size(visible, reach=mask.reach, context_length=context_length)


def _mlp_advice(mlp: MLPConfig, d_model: int) -> Iterator[Advice | None]:
    yield ffn_ratio(mlp.d_ff, d_model)
    yield tiles("mlp.d_ff", mlp.d_ff)


def _moe_advice(moe: MoEConfig, d_model: int) -> Iterator[Advice | None]:
    num_used = moe.router.experts_per_token + moe.num_shared_experts
    yield ffn_ratio(num_used * moe.d_ff, d_model)
    yield expert_granularity(moe.d_ff, d_model)
    yield tiles("mlp.d_ff", moe.d_ff)


def _windows(config: ModelConfig) -> tuple[list[int], bool]:
    """Reach of every windowed layer, and whether any layer sees everything."""
    reaches: list[int] = []
    has_unbounded = False
    for layer, count in config.layer_counts():
        reach = layer.attention.mask.reach
        has_unbounded = has_unbounded or reach is None
        reaches += [] if reach is None else [reach] * count
    return reaches, has_unbounded


def _body_params(config: ModelConfig) -> int:
    """Parameters that one token uses outside of embedding, positions and head."""
    counts = config.param_counts()
    outside = counts["embedding"] + counts["position"] + counts["head"]
    return config.num_active_params() - outside


def _next_multiple(size: int) -> int:
    return -(-size // TILE) * TILE


def _two_digits(number: float) -> int:
    """Rounded to two digits: the fits are no better."""
    return int(float(f"{number:.1e}"))
