"""Amounts of memory as people write them: `2GB`, `512 MiB`, `1.5g`."""

import re

from lmworks.base.errors import ConfigError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d[\d_,]*(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE | re.ASCII)


def parse_bytes(size: int | str, what: str) -> int:
    """Bytes of `size`: a whole number, or a text with a unit (kB = 1,000, KiB = 1,024).

    Args:
        size: what the user wrote.
        what: name of the setting, for the message.

    Raises:
        ConfigError: it is no positive size.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if match and not (match[3] and not match[2]):
        units = _BINARY_UNITS if match[3] else _UNITS
        num_bytes = int(float(re.sub("[_,]", "", match[1])) * units[match[2].lower()])
        if num_bytes > 0:
            return num_bytes
    raise ConfigError(f"{what}={size!r} is no size; write bytes or a unit: 2GB, 512MiB, 1.5g")
