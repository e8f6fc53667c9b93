"""Masks say what their papers do, count what they let through, and keep it in any form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from lmworks.base.config import load
from lmworks.base.errors import ConfigError
from lmworks.models.config import ModelConfig
from lmworks.nn.attention.mask import KeySpan, layer_mask, packed_layer_mask, visible
from lmworks.nn.config import FullMaskConfig, MaskConfig, cache_slots
from lmworks.nn.position import packed_positions
from lmworks.ops.attention.blocks import block_masks_as_one

MASK = TypeAdapter(MaskConfig)
CPU = torch.device("cpu")


def make_mask(kind: str, **values) -> MaskConfig:
    return MASK.validate_python({"kind": kind, **values})


def rows(mask: MaskConfig, num_tokens: int) -> list[str]:
    """One text row per query, # where it sees the key."""
    index = torch.arange(num_tokens)
    return ["".join(" #"[seen] for seen in row) for row in visible(mask, index, index).tolist()]


def test_full_is_everything_before():
    assert rows(make_mask("full"), 3) == ["#  ", "## ", "###"]


def test_window_is_the_last_tokens_and_the_sinks():
    assert rows(make_mask("window", size=2), 4) == ["#   ", "##  ", " ## ", "  ##"]
    assert rows(make_mask("window", size=2, num_sink_tokens=1), 4) == [
        "#   ",
        "##  ",
        "### ",
        "# ##",
    ]


def test_strided_is_the_last_tokens_and_every_stride_before():
    assert rows(make_mask("strided", stride=3, window=2), 7) == [
        "#      ",
        "##     ",
        " ##    ",
        "# ##   ",
        " # ##  ",
        "  # ## ",
        "#  # ##",
    ]


def test_block_is_own_and_former_blocks_and_global_tokens():
    mask = make_mask("block", block_size=2, num_local_blocks=2, num_global_tokens=1)
    assert rows(mask, 7) == [
        "#      ",
        "##     ",
        "###    ",
        "####   ",
        "# ###  ",
        "# #### ",
        "#   ###",
    ]


KINDS = ["full", "window", "strided", "block"]


def mask_of(kind: str, numbers: tuple[int, int, int]) -> MaskConfig:
    a, b, c = numbers
    return {
        "full": lambda: make_mask("full"),
        "window": lambda: make_mask("window", size=a, num_sink_tokens=c),
        "strided": lambda: make_mask("strided", stride=a, window=b),
        "block": lambda: make_mask("block", block_size=a, num_local_blocks=b, num_global_tokens=c),
    }[kind]()


NUMBERS = st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(0, 7))


@settings(max_examples=200)
@given(kind=st.sampled_from(KINDS), numbers=NUMBERS, num_tokens=st.integers(1, 60))
def test_counts_are_those_of_the_mask(kind, numbers, num_tokens):
    mask, index = mask_of(kind, numbers), torch.arange(num_tokens)
    seen = visible(mask, index, index).sum(-1)
    assert mask.total_visible(num_tokens) == int(seen.sum())
    # The most that any query of a longer text sees: block masks reach it at the end of a block.
    assert int(seen.max()) <= mask.max_visible(num_tokens)
    if kind != "block" or num_tokens % numbers[0] == 0:
        assert mask.max_visible(num_tokens) == int(seen.max())


@settings(max_examples=100)
@given(
    kind=st.sampled_from(KINDS),
    numbers=NUMBERS,
    num_tokens=st.integers(1, 300),
    num_cached=st.integers(0, 60),
)
def test_a_query_sees_what_reach_and_first_tokens_say(kind, numbers, num_tokens, num_cached):
    mask, index = mask_of(kind, numbers), torch.arange(num_tokens)
    seen = visible(mask, index, index)
    if mask.reach is not None:
        far = index[:, None] - index > mask.reach
        assert not (seen & far & (index >= mask.num_first_tokens)).any()


@settings(max_examples=100)
@given(
    kind=st.sampled_from(KINDS),
    numbers=NUMBERS,
    num_queries=st.integers(1, 300),
    num_cached=st.integers(0, 60),
    forgets=st.booleans(),
)
def test_layer_mask_is_the_rule_over_the_keys_held(kind, numbers, num_queries, num_cached, forgets):
    mask, end = mask_of(kind, numbers), num_cached + num_queries
    keys = KeySpan(0, 0, end)
    if forgets and mask.reach is not None:
        start = max(0, num_cached - mask.reach)
        keys = KeySpan(mask.num_first_tokens, start, end).joined()
    made = layer_mask(mask, num_queries, keys, CPU)
    if made is None:
        made = torch.ones(num_queries, keys.num_keys).tril(keys.num_keys - num_queries).bool()
    elif not isinstance(made, torch.Tensor):
        made = block_masks_as_one(made, keys.num_keys, CPU)
    expected = visible(mask, torch.arange(num_cached, end), keys.positions(CPU))
    assert torch.equal(made, expected)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    numbers=NUMBERS,
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=4),
)
def test_packed_documents_see_what_each_would_alone(kind, numbers, lengths):
    mask = mask_of(kind, numbers)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    made = packed_layer_mask(mask, ids, packed_positions(ids))
    if not isinstance(made, torch.Tensor):
        made = block_masks_as_one(made, ids.shape[1], CPU)
    alone = [visible(mask, torch.arange(n), torch.arange(n)) for n in lengths]
    assert torch.equal(made[0, 0], torch.block_diag(*alone).bool())


def test_long_windows_are_read_in_blocks_of_their_own_keys():
    made = layer_mask(
        make_mask("window", size=64, num_sink_tokens=4), 4096, KeySpan(0, 0, 4096), CPU
    )
    assert all(
        block.num_first_keys + block.end_key - block.first_key <= 4 + 63 + 128 for block in made
    )


@pytest.mark.parametrize("kind", KINDS)
def test_bounded_layers_need_room_for_their_own_tokens_only(kind):
    mask = mask_of(kind, (9, 2, 3))
    slots = cache_slots(mask, 10**6)
    assert slots == 10**6 if mask.reach is None else slots < 100
    assert cache_slots(mask, 20) == 20


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("attention.mask.kind=windows", "attention.mask.kind"),
        ("attention.mask.size=0", "attention.mask"),
        ("attention.mask={kind: window, size: 0}", r"attention.mask.size.*greater"),
        ("attention.mask={kind: window}", r"attention.mask.size: must be set"),
        ("attention.mask={kind: block, block_size: 4, num_global: 1}", "num_global_tokens"),
    ],
)
def test_wrong_masks_are_named(override, message):
    with pytest.raises(ConfigError, match=message):
        load(ModelConfig, None, ["preset=tiny", override])


def test_a_mask_is_set_from_the_command_line():
    config = load(
        ModelConfig, None, ["preset=tiny", "attention.mask.kind=window", "attention.mask.size=32"]
    ).config
    assert config.attention.mask == make_mask("window", size=32)
    assert ModelConfig.preset("tiny").attention.mask == FullMaskConfig()
