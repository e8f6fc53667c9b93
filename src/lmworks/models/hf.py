"""Hugging Face model folders: config.json and safetensors, one file or shards with an index.

    model = load_hf("SmolLM2-135M", dtype=torch.bfloat16)
    save_hf("out", model, tokenizer=tokenizer)          # transformers loads it

What differs between families is in `families/`; this module moves tensors. Both ways go one tensor
at a time. Folders come from strangers: names in the index stay inside the folder, shapes are
compared with the config before anything is allocated, pickled weights are not read.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError
from torch import Tensor

from lmworks.base.errors import CheckpointError, ConfigError
from lmworks.base.storage import atomic_file, write_json
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.families import Family, family_for, family_named
from lmworks.models.families.weights import Piece, Pieces, by_theirs, cut_shape, is_stacked
from lmworks.models.state import build_decoder, name_problems
from lmworks.models.tensor_file import (
    Header,
    TensorFile,
    first_reason,
    read_json_object,
    write_tensors,
)

WEIGHTS_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
CONFIG_FILE: Final = "config.json"
DEFAULT_SHARD_BYTES: Final = 5_000_000_000
MAX_SHARDS: Final = 500
"""They are all open at once; DeepSeek-V3 has 163."""
_HEAD: Final = "lm_head."


def is_hf_config(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is Hugging Face's; ours has no `model_type`."""
    return "model_type" in values


def load_hf(folder: str | Path, *, dtype: torch.dtype | None = None) -> Decoder:
    """The model in a Hugging Face folder, in evaluation mode, in `dtype` or as it is stored.

    Raises:
        CheckpointError: a file is missing, truncated or not what it says, the family is not known,
            or the config asks for something that would change the results and is not supported.
    """
    folder = Path(folder)
    with _open_weights(folder) as files:
        weights = _HFWeights(folder, files)
        return build_decoder(weights.config, weights, dtype=dtype)


def load_hf_config(folder: str | Path) -> ModelConfig:
    """The architecture of the model in a Hugging Face folder; weights are looked at, not read."""
    folder = Path(folder)
    with _open_weights(folder) as files:
        return _HFWeights(folder, files).config


def save_hf(
    folder: str | Path, model: Decoder, *, max_shard_bytes: int = DEFAULT_SHARD_BYTES
) -> Family:
    """Write config.json and the weights, in the dtype they have; gives the family it is written as.

    Weights larger than `max_shard_bytes` go into several files and an index.

    Raises:
        ConfigError: no family can express this model; says what the nearest one lacks.
        StorageError: the disk is full or read-only.
    """
    if max_shard_bytes < 1:
        raise ConfigError(f"max_shard_bytes={max_shard_bytes}: must be at least 1")
    folder = Path(folder)
    family, values = family_for(model.config)
    pieces = by_theirs(family.pieces(model.config, ()))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    dtype = str(model.embed.weight.dtype).removeprefix("torch.")
    head = {"architectures": [family.architecture], "model_type": family.model_type}
    _write_weights(folder, _Gathered(state, pieces), max_shard_bytes)
    write_json(folder / CONFIG_FILE, head | values | {"torch_dtype": dtype})
    return family


class _Gathered:
    """Their tensors, each put together from ours when asked for."""

    def __init__(
        self, state: Mapping[str, Tensor], pieces: Mapping[str, list[tuple[str, Piece]]]
    ) -> None:
        self.state, self.pieces = state, pieces
        self.headers = {name: self._header(parts) for name, parts in pieces.items()}

    def _header(self, parts: list[tuple[str, Piece]]) -> Header:
        shape: tuple[int, ...] = ()
        for name, piece in parts:
            own = piece.shape(tuple(self.state[name].shape))
            stops = [cut.stop for cut in piece.part if cut.stop is not None]
            dims = (
                [cut.stop or size for cut, size in zip(piece.part, own, strict=False)]
                if stops
                else []
            )
            full = (*dims, *own[len(dims) :])
            shape = tuple(map(max, shape, full)) if shape else full
        return Header(shape, self.state[parts[0][0]].dtype)

    def __call__(self, theirs: str) -> Tensor:
        parts = self.pieces[theirs]
        if len(parts) == 1 and not parts[0][1].part:
            return _our_part(self.state[parts[0][0]], parts[0][1])
        header = self.headers[theirs]
        whole = torch.empty(header.shape, dtype=header.dtype)
        for name, piece in parts:
            whole[piece.part].copy_(_our_part(self.state[name], piece))
        return whole


def _our_part(tensor: Tensor, piece: Piece) -> Tensor:
    """The view of our tensor that a piece of theirs holds, in their orientation."""
    if piece.expert is not None:
        tensor = tensor[piece.expert]
    tensor = tensor[piece.ours] if piece.ours else tensor
    return tensor.T if piece.is_transposed else tensor


def _write_weights(folder: Path, tensors: _Gathered, max_shard_bytes: int) -> None:
    shards = _shards(tensors.headers, max_shard_bytes)
    names = (
        [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        if len(shards) > 1
        else [WEIGHTS_FILE]
    )
    for file_name, shard in zip(names, shards, strict=True):
        with atomic_file(folder / file_name) as part:
            write_tensors(part, shard, tensors, metadata={"format": "pt"})
    if len(shards) == 1:
        (folder / INDEX_FILE).unlink(missing_ok=True)
        return
    weight_map = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
    size = sum(header.num_bytes for header in tensors.headers.values())
    write_json(folder / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": weight_map})
    (folder / WEIGHTS_FILE).unlink(missing_ok=True)


def _shards(headers: Mapping[str, Header], max_bytes: int) -> list[dict[str, Header]]:
    """Consecutive tensors that fit `max_bytes` together, at least one each."""
    shards: list[dict[str, Header]] = [{}]
    size = 0
    for name, header in headers.items():
        if shards[-1] and size + header.num_bytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = header
        size += header.num_bytes
    return shards


class _HFWeights:
    """A folder's tensors as a WeightSource: under our names, put together from theirs."""

    def __init__(self, folder: Path, files: Mapping[str, TensorFile]) -> None:
        self.where = str(folder)
        values = read_json_object(folder / CONFIG_FILE)
        where = str(folder / CONFIG_FILE)
        self._family = family_named(values.get("model_type"), where=where)
        self._files = _under_full_names(files, self._family)
        fields = self._family.fields(values, where=where, max_layers=len(self._files))
        self.config = _model_config(self._family.read(fields, self._files), where)
        fields.finish()
        self._pieces = self._checked_pieces()
        self.headers = {name: self._header(name, parts) for name, parts in self._pieces.items()}

    def fill(self, name: str, out: Tensor) -> None:
        for piece in self._pieces[name]:
            file, theirs = self._files[piece.theirs]
            file.read_into(theirs, _our_part(out, piece), part=piece.part or (slice(None),))

    def _header(self, name: str, parts: Sequence[Piece]) -> Header:
        file, theirs = self._files[parts[0].theirs]
        return Header(self._shapes[name], file.headers[theirs].dtype)

    def _checked_pieces(self) -> Pieces:
        """The pieces of all our weights, all there and of the right shape, and nothing else."""
        self._check_counts()
        self._shapes = self.config.weight_shapes()
        pieces = self._family.pieces(self.config, self._files)
        used = by_theirs(pieces)
        missing = [name for name in used if name not in self._files]
        problems = name_problems("missing", missing)
        problems += name_problems("unexpected", self._unexpected(used))
        problems += name_problems(
            "mis-shaped",
            [
                text
                for name in used
                if name in self._files
                for text in self._shape_problem(name, used[name])
            ],
        )
        if problems:
            raise CheckpointError(
                f"{self.where}: not the weights of its {CONFIG_FILE}: {'; '.join(problems)}"
            )
        return pieces

    def _check_counts(self) -> None:
        """Names are made per expert: a forged number must not take all memory."""
        if is_stacked(self._files):
            return
        for layer, count in self.config.layer_counts():
            num_experts = getattr(layer.mlp, "num_experts", 0)
            if count * num_experts > len(self._files):
                raise CheckpointError(
                    f"{self.where}: {len(self._files)} tensors cannot be a model of {num_experts} "
                    f"experts in {count} layers"
                )

    def _unexpected(self, used: Collection[str]) -> list[str]:
        is_tied = self.config.tie_embeddings
        return [
            name
            for name in self._files
            if name not in used
            and not self._family.is_left_over(name)
            and not (is_tied and name.startswith(_HEAD))
        ]

    def _shape_problem(self, theirs: str, parts: Sequence[tuple[str, Piece]]) -> list[str]:
        """What is wrong with the shape of one of their tensors, all of which has to be used."""
        file, own_name = self._files[theirs]
        header = file.headers[own_name]
        num_used = 0
        for name, piece in parts:
            wanted = piece.shape(self._shapes[name])
            found = cut_shape(header.shape, piece.part)
            if found != wanted:
                return [f"{theirs} {header.shape}, of which {name} takes {found}, not {wanted}"]
            num_used += Header(wanted, header.dtype).num_bytes
        if num_used != header.num_bytes:
            return [f"{theirs} {header.shape} has more than {', '.join(n for n, _ in parts)}"]
        return []


def _model_config(values: Mapping[str, Any], where: str) -> ModelConfig:
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as err:
        raise CheckpointError(f"{where}: not a model config: {first_reason(err)}") from None


def _under_full_names(
    files: Mapping[str, TensorFile], family: Family
) -> dict[str, tuple[TensorFile, str]]:
    """File and own name of each tensor, by the name it has in the model with its head."""
    has_prefix = any(name.startswith(family.prefix) for name in files)
    return {
        name if has_prefix or name.startswith(_HEAD) else family.prefix + name: (file, name)
        for name, file in files.items()
    }


@contextmanager
def _open_weights(folder: Path) -> Iterator[dict[str, TensorFile]]:
    """The open file of each tensor by name."""
    with ExitStack() as stack:
        if (folder / WEIGHTS_FILE).is_file():
            file = stack.enter_context(TensorFile(folder / WEIGHTS_FILE))
            yield dict.fromkeys(file.headers, file)
            return
        if not (folder / INDEX_FILE).is_file():
            raise CheckpointError(f"{folder / WEIGHTS_FILE}: missing{_hint(folder)}")
        weight_map = _read_index(folder / INDEX_FILE)
        shards = {
            name: stack.enter_context(TensorFile(folder / name))
            for name in sorted(set(weight_map.values()))
        }
        for tensor, name in weight_map.items():
            if tensor not in shards[name].headers:
                raise CheckpointError(
                    f"{folder / INDEX_FILE}: {tensor!r:.80} is not in {name}, as it says"
                )
        yield {tensor: shards[name] for tensor, name in weight_map.items()}


def _read_index(file: Path) -> dict[str, str]:
    """Which file each tensor is in; all of them plain names beside the index."""
    weight_map = read_json_object(file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{file}: weight_map must map names of tensors to files")
    for name in weight_map.values():
        is_plain = isinstance(name, str) and Path(name).name == name and "\0" not in name
        if not is_plain or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{file}: {name!r:.80} is not the name of a .safetensors file in that folder"
            )
    if len(set(weight_map.values())) > MAX_SHARDS:
        raise CheckpointError(f"{file}: names more than {MAX_SHARDS} files")
    return weight_map


def _hint(folder: Path) -> str:
    if any(folder.glob("pytorch_model*.bin")):
        return "; pickled weights (pytorch_model.bin) can run code and are not read"
    return ""
