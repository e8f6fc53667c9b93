"""The pairs `ARCHITECTURE.*` of a GGUF file, read so that none is overlooked.

Every key that is read is remembered; `refuse_rest` then refuses the first that was not and that is
not known to leave the mathematics alone. A file whose model computes something else than ours is
thus named, not loaded wrongly.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from lmworks.base.errors import CheckpointError
from lmworks.models.gguf import pairs as single
from lmworks.tokenizer.gguf_metadata import Value

# They describe the model or say what is the rule anyway: how tensors are laid out, what a
# vocabulary's size is (that of the embedding counts), that a scaled context was trained.
_HARMLESS: Final = frozenset(
    {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "use_parallel_residual"}
)


class ShapedTensor(NamedTuple):
    """What the architecture may depend on of a tensor: its shape, and its values if it is small."""

    shape: tuple[int, ...]
    values: tuple[float, ...] = ()


class Metadata:
    """The pairs of one architecture, and which tensors there are."""

    def __init__(
        self, pairs: Mapping[str, Value], tensors: Mapping[str, ShapedTensor], architecture: str
    ) -> None:
        self.tensors = tensors
        self._pairs = pairs
        self._prefix = f"{architecture}."
        self._known = {self._prefix + name for name in _HARMLESS}

    def has(self, name: str) -> bool:
        """Whether the pair is there; asking alone does not count as reading it."""
        return self._prefix + name in self._pairs

    def whole(self, name: str, default: int | None = None, *, at_least: int = 0) -> int:
        """A whole number, or one per layer that are all the same."""
        key = self._key(name)
        value = self._pairs.get(key)
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise CheckpointError(f"{key} differs between layers, which is not supported")
            return single.whole({key: value[0]}, key, at_least=at_least)
        return single.whole(self._pairs, key, default, at_least=at_least)

    def number(self, name: str, default: float | None = None) -> float:
        """A number; of those in fp32, the shortest decimal one."""
        return _shortest(single.number(self._pairs, self._key(name), default))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        return single.flag(self._pairs, self._key(name), default)

    def text(self, name: str, default: str | None = None) -> str:
        """Text."""
        return single.text(self._pairs, self._key(name), default)

    def list_or_none(self, name: str) -> list[Value] | None:
        """A list if the pair is one."""
        value = self._pairs.get(self._prefix + name)
        if not isinstance(value, list):
            return None
        self._key(name)
        return list(value)

    def expect(self, name: str, *allowed: Value) -> None:
        """Refuse the pair if it is there and is none of these."""
        key = self._key(name)
        value = self._pairs.get(key)
        if value is not None and not any(
            type(value) is type(one) and value == one for one in allowed
        ):
            wanted = " or ".join(map(repr, allowed))
            raise CheckpointError(f"{key}={value!r:.60} is not supported; only {wanted} is")

    def refuse_rest(self) -> None:
        """CheckpointError for a pair of the architecture that nothing has asked for."""
        for key in self._pairs:
            if key.startswith(self._prefix) and key not in self._known:
                raise CheckpointError(
                    f"{key}={self._pairs[key]!r:.60} is not known here; it may change what the "
                    "model computes"
                )

    def _key(self, name: str) -> str:
        key = self._prefix + name
        self._known.add(key)
        return key


def _shortest(value: float) -> float:
    single_precision = np.float32(value)
    return float(str(single_precision)) if single_precision == value else value
