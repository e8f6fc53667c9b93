"""A GGUF file to a model: the config from its pairs, the weights from its tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from lmworks.base.errors import CheckpointError, DataError
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.gguf.architectures import ARCHITECTURES
from lmworks.models.gguf.container import GgufFile, TensorInfo, open_gguf
from lmworks.models.gguf.convert import dequantize
from lmworks.models.gguf.metadata import Metadata, ShapedTensor
from lmworks.models.gguf.names import places
from lmworks.models.gguf.pairs import text
from lmworks.models.gguf.places import Place
from lmworks.models.gguf.rope import FACTORS
from lmworks.models.state import build_decoder
from lmworks.models.tensor_file import Header
from lmworks.tokenizer import Tokenizer
from lmworks.tokenizer import gguf as gguf_vocabulary
from lmworks.tokenizer.gguf_metadata import Value

# Tensors that say something of the config and are no weights.
_CONFIG_TENSORS: Final = frozenset({FACTORS})
_MAX_SMALL: Final = 4096


class LoadedGguf(NamedTuple):
    """All that a GGUF file holds."""

    model: Decoder
    tokenizer: Tokenizer
    chat_template: str | None
    """Jinja text that turns messages into a prompt."""
    special_ids: Mapping[str, int]
    """Ids of tokens by their part: "bos", "eos", "unknown", "padding", "eot", ..."""


def load(path: str | Path, *, dtype: torch.dtype = torch.float32) -> LoadedGguf:
    """Model, tokenizer and chat template of a GGUF file; see `load_model`.

    Raises:
        CheckpointError: as `load_model`; the vocabulary has more tokens than the model.
        DataError: as `load_model`; there is no vocabulary, or one that is not known.
    """
    with open_gguf(path) as file:
        try:
            vocabulary = gguf_vocabulary.from_pairs(file.pairs)
        except DataError as err:
            raise DataError(f"{path}: {err}") from None
        model = _model_of(file, dtype=dtype)
    tokenizer = vocabulary.tokenizer
    if tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{path}: {tokenizer.vocab_size} tokens, but the embedding has "
            f"{model.config.vocab_size} rows"
        )
    return LoadedGguf(model, tokenizer, vocabulary.chat_template, vocabulary.special_ids)


def load_model(path: str | Path, *, dtype: torch.dtype = torch.float32) -> Decoder:
    """The model in a GGUF file, in evaluation mode, on the CPU, its weights dequantized.

    Weights come one by one, so that memory is the model's size and a few MB.

    Raises:
        CheckpointError: the architecture is not known, or pairs and tensors do not fit it.
        DataError: the file is no GGUF file, or cut short.
    """
    with open_gguf(path) as file:
        return _model_of(file, dtype=dtype)


def load_config(path: str | Path) -> ModelConfig:
    """The architecture of the model in a GGUF file; weights are not read.

    Raises:
        CheckpointError: as `load_model`.
        DataError: as `load_model`.
    """
    with open_gguf(path) as file:
        return _config_of_file(file, _architecture(file))


def _model_of(file: GgufFile, *, dtype: torch.dtype) -> Decoder:
    architecture = _architecture(file)
    config = _config_of_file(file, architecture)
    return build_decoder(config, GgufWeights(file, config, architecture), dtype=dtype)


def _config_of_file(file: GgufFile, architecture: str) -> ModelConfig:
    tensors = {info.name: _shaped(file, info) for info in file.tensors.values()}
    try:
        return config_of(file.pairs, tensors, architecture)
    except CheckpointError as err:
        raise CheckpointError(f"{file.path}: {err}") from None


def _architecture(file: GgufFile) -> str:
    """The architecture of a file, one of those that are known."""
    name = text(file.pairs, "general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            f"{file.path}: general.architecture={name!r:.60} is not supported; known: {known}"
        )
    return name


def config_of(
    pairs: Mapping[str, Value], tensors: Mapping[str, ShapedTensor], architecture: str
) -> ModelConfig:
    """The architecture's pairs as a config."""
    meta = Metadata(pairs, tensors, architecture)
    values = ARCHITECTURES[architecture].read(meta)
    meta.refuse_rest()
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as err:
        first: Any = err.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"no model of ours: {where}: {first['msg']}") from None


class GgufWeights:
    """A file's tensors as the weights of a config (a WeightSource of lmworks.models.state)."""

    def __init__(self, file: GgufFile, config: ModelConfig, architecture: str) -> None:
        self._file = file
        self._places = places(config, architecture, file.tensors)
        self._shapes = {name: info.shape for name, info in file.tensors.items()}
        self._wanted = config.weight_shapes()

    @property
    def where(self) -> str:
        """The file."""
        return str(self._file.path)

    @property
    def headers(self) -> Mapping[str, Header]:
        """Weights that are there by our names; tensors that no weight is made of by theirs."""
        headers = {
            name: Header(self._shape(name, place), torch.float32)
            for name, place in self._places.items()
            if all(theirs in self._shapes for theirs in place.names)
        }
        used = {theirs for place in self._places.values() for theirs in place.names}
        return headers | {
            name: Header(shape, torch.float32)
            for name, shape in self._shapes.items()
            if name not in used and name not in _CONFIG_TENSORS
        }

    def fill(self, name: str, out: Tensor) -> None:
        """Decode one weight."""
        self._places[name].load(self._file, out)

    def _shape(self, name: str, place: Place) -> tuple[int, ...]:
        # ggml drops dims of one element at the slow end.
        shape, wanted = place.shape(self._shapes), self._wanted[name]
        return wanted if _without_ones(shape) == _without_ones(wanted) else shape


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    first = next((i for i, dim in enumerate(shape) if dim != 1), len(shape))
    return shape[first:]


def _shaped(file: GgufFile, info: TensorInfo) -> ShapedTensor:
    if info.name not in _CONFIG_TENSORS or info.shape[-1] > _MAX_SMALL or len(info.shape) != 1:
        return ShapedTensor(info.shape)
    values = dequantize(file.read(info, 0, info.shape[0]), info.kind).reshape(-1).tolist()
    return ShapedTensor(info.shape, tuple(values))
