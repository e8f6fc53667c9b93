"""What a family of Hugging Face models is to us: its config and its names, both ways.

`read` and `write` are each other's inverse on the models that a family can express; that is also
how a family is found for a model that was made here: the first one whose written config reads back
as the same model.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmworks.models.config import ModelConfig
from lmworks.models.families.fields import MAX_COUNT, Fields
from lmworks.models.families.weights import Piece

Values = dict[str, Any]
"""Plain data: of a ModelConfig or of a config.json."""


@dataclass(frozen=True)
class Family:
    """One `model_type` of Hugging Face's."""

    model_type: str
    architecture: str
    """The class that transformers loads it with."""
    read: Callable[[Fields, Collection[str]], Values]
    """Values of a ModelConfig from a config.json; the second argument is the names of the tensors
    that are there, which some configs leave open."""
    write: Callable[[ModelConfig], Values]
    """The keys of config.json; only those of models that `read` gives need to be right."""
    pieces: Callable[[ModelConfig, Collection[str]], dict[str, list[Piece]]]
    """Where each of our weights is in theirs; KeyError if the family has no place for one. The
    names are those that are there, or none for a checkpoint to be written."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that a config.json may leave out (a null is not left out)."""
    prefix: str = "model."
    """Of all tensors but the head; checkpoints of the bare model leave it out."""
    is_left_over: Callable[[str], bool] = lambda name: name.endswith("rotary_emb.inv_freq")
    """Whether a tensor is a constant that follows from the config and need not be read."""

    def fields(
        self, values: Mapping[str, Any], *, where: str, max_layers: int = MAX_COUNT
    ) -> Fields:
        """The keys of a config.json, to be read; what no family supports is refused here."""
        fields = Fields({**self.defaults, **values}, where=where, max_layers=max_layers)
        fields.refuse_unless("quantization_config")
        fields.refuse_unless("is_encoder_decoder", False)
        return fields
