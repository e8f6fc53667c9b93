"""Special tokens: tiktoken's rules, longest match."""

import pytest

from lmworks.base.errors import ConfigError, DataError
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer

BYTES = [bytes([i]) for i in range(256)]
END = "<|endoftext|>"


@pytest.fixture(params=["bpe", "byte"])
def tokenizer(request: pytest.FixtureRequest) -> BPETokenizer | ByteTokenizer:
    names = ["<a>", "<a><b>", "<b>"]
    if request.param == "byte":
        return ByteTokenizer(names)
    specials = {name: 256 + i for i, name in enumerate(names)}
    return BPETokenizer(BYTES, [], pattern="gpt2", special_tokens=specials)


def test_a_special_token_in_the_text_is_an_error_by_default(tokenizer: BPETokenizer) -> None:
    with pytest.raises(DataError, match="contains the special token '<b>'"):
        tokenizer.encode("x<b>")


def test_an_allowed_special_token_is_one_id(tokenizer: BPETokenizer) -> None:
    assert tokenizer.encode("x<b>y", allowed_special={"<b>"}) == [120, 258, 121]


def test_others_are_still_forbidden_when_some_are_allowed(tokenizer: BPETokenizer) -> None:
    with pytest.raises(DataError, match="'<a>'"):
        tokenizer.encode("<b><a>", allowed_special={"<b>"})


def test_nothing_disallowed_encodes_special_tokens_as_text(tokenizer: BPETokenizer) -> None:
    assert tokenizer.encode("<b>", disallowed_special=()) == list(b"<b>")


def test_allowed_goes_before_disallowed(tokenizer: BPETokenizer) -> None:
    ids = tokenizer.encode("<b>", allowed_special={"<b>"}, disallowed_special={"<b>"})
    assert ids == [258]


def test_the_longest_special_token_wins(tokenizer: BPETokenizer) -> None:
    assert tokenizer.encode("<a><b><a>", allowed_special="all") == [257, 256]


def test_an_unknown_special_token_is_refused_with_the_nearest(tokenizer: BPETokenizer) -> None:
    with pytest.raises(ConfigError, match="no special token '<c>'"):
        tokenizer.encode("x", allowed_special={"<c>"})
    with pytest.raises(ConfigError, match="must be 'all' or a set"):
        tokenizer.encode("x", allowed_special="<a>")  # type: ignore[arg-type]


def test_batches_refuse_forbidden_tokens_too(tokenizer: BPETokenizer) -> None:
    with pytest.raises(DataError, match="'<a>'"):
        tokenizer.encode_batch(["x", "y<a>"], num_threads=2)


def test_added_tokens_count_in_every_text() -> None:
    tokenizer = BPETokenizer(
        BYTES, [], pattern="gpt2", special_tokens={}, added_tokens={"<tool>": 256}
    )
    assert tokenizer.encode("a<tool>", disallowed_special=()) == [97, 256]


def test_twenty_thousand_special_tokens_cost_no_more_than_one() -> None:
    specials = {f"<extra_{i}>": 256 + i for i in range(20_000)}
    tokenizer = BPETokenizer(BYTES, [], pattern="gpt2", special_tokens=specials)
    text = "<extra_19999> <extra_ " * 5_000
    ids = tokenizer.encode(text, allowed_special="all")
    assert ids.count(256 + 19_999) == 5_000
    assert tokenizer.decode(ids) == text


def test_end_of_text_has_a_name(gpt2: BPETokenizer) -> None:
    assert gpt2.eot_id == gpt2.special_tokens[END]
    assert BPETokenizer(BYTES, [], pattern="gpt2", special_tokens={}).eot_id is None
