"""Sizes are read as people write them."""

import pytest

from lmworks.base.errors import ConfigError
from lmworks.base.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("2GB", 2 * 10**9),
        ("2 gb", 2 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5g", 1_500_000_000),
        ("1_000k", 1_000_000),
        ("1T", 10**12),
    ],
)
def test_a_size_is_read(text: int | str, num_bytes: int) -> None:
    assert parse_bytes(text, "max_memory") == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "0", "2XB", "2iB", "1e9", "nan", 0, -5, True])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(ConfigError, match=r"max_memory=.* is no size; write bytes or a unit"):
        parse_bytes(text, "max_memory")
