"""Models on disk, whatever wrote them: ours, Hugging Face folders, GGUF files. Never pickle.

    save_pretrained("out/model", model)
    model = load_pretrained("runs/demo")          # the latest checkpoint of a run
    run = open_run("runs/demo")                   # model, tokenizer, chat template

Ours are `model.safetensors` and `config.json` in one folder. A path may be such a folder, a
checkpoint of a run, a run, a Hugging Face folder, or a .gguf file. Files are not trusted: names,
shapes and dtypes are compared with the config before anything is allocated.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lmworks.base.errors import CheckpointError
from lmworks.base.storage import atomic_file, write_json
from lmworks.models import gguf
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.hf import is_hf_config, load_hf, load_hf_config
from lmworks.models.hf_text import PARTS, has_tokenizer, load_hf_text
from lmworks.models.state import build_decoder
from lmworks.models.tensor_file import Header, TensorFile, first_reason, read_json_object
from lmworks.tokenizer import Tokenizer
from lmworks.tokenizer.chat_template import ChatTemplate

WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE = "model.safetensors", "config.json", "tokenizer.json"
GGUF_SUFFIX = ".gguf"
CHECKPOINTS_FOLDER, LATEST_FILE = "checkpoints", "latest"

_ENDING_PARTS = ("eos", "eot", "eom")


class Run(NamedTuple):
    """A trained model with the tokenizer that it was trained with."""

    model: Decoder
    tokenizer: Tokenizer
    path: Path
    """Folder or file that the weights came from."""
    chat_template: ChatTemplate | None = None
    """How the model wants messages written into its prompt; None for a base model."""
    special_ids: Mapping[str, int] = MappingProxyType({})
    """Ids of special tokens by their part: bos, eos, unknown, padding, ..."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end an answer, beside the tokenizer's end-of-text."""


def save_pretrained(folder: str | Path, model: Decoder) -> None:
    """Write weights (in the dtype they have) and config into `folder`, made if need be.

    Raises:
        StorageError: the disk is full or read-only; files that were there before are intact.
    """
    folder = Path(folder)
    weights = {k: v.detach().contiguous() for k, v in model.state_dict().items()}
    with atomic_file(folder / WEIGHTS_FILE) as part:
        save_tensors(part, weights)
    write_json(folder / CONFIG_FILE, model.config.model_dump(mode="json"))


class _OwnWeights(NamedTuple):
    """A file of ours as a WeightSource: the names are already right."""

    file: TensorFile

    @property
    def where(self) -> str:
        return str(self.file.path)

    @property
    def headers(self) -> Mapping[str, Header]:
        return self.file.headers

    def fill(self, name: str, out: Tensor) -> None:
        self.file.read_into(name, out)


def load_pretrained(path: str | Path, *, dtype: torch.dtype | None = None) -> Decoder:
    """The model in `path`, in evaluation mode, weights in `dtype` or as they are stored.

    Raises:
        CheckpointError: a file is missing, truncated or not what it says, or the tensors are those
            of another architecture; names the first missing, unexpected and mis-shaped ones.
    """
    if is_gguf(path):
        return gguf.load_model(path, dtype=dtype or torch.float32)
    folder = checkpoint_folder(path)
    values = read_json_object(folder / CONFIG_FILE)
    if is_hf_config(values):
        return load_hf(folder, dtype=dtype)
    config = _own_config(values, folder)
    with TensorFile(folder / WEIGHTS_FILE) as file:
        return build_decoder(config, _OwnWeights(file), dtype=dtype)


def load_config(path: str | Path) -> ModelConfig:
    """The architecture of the model in `path`; weights are not read."""
    if is_gguf(path):
        return gguf.load_config(path)
    folder = checkpoint_folder(path)
    values = read_json_object(folder / CONFIG_FILE)
    return load_hf_config(folder) if is_hf_config(values) else _own_config(values, folder)


def open_run(path: str | Path, *, dtype: torch.dtype | None = None) -> Run:
    """Model and tokenizer of a run, a checkpoint of one, a model folder, or a .gguf file.

    Raises:
        CheckpointError: as `load_pretrained`; or there is no tokenizer, or that of another model.
        DataError: the tokenizer's file is not right.
    """
    if is_gguf(path):
        return _open_gguf(Path(path), dtype or torch.float32)
    folder = checkpoint_folder(path)
    text = load_hf_text(_tokenizer_home(folder))
    model = load_pretrained(folder, dtype=dtype)
    num_tokens, vocab_size = text.tokenizer.vocab_size, model.config.vocab_size
    if num_tokens > vocab_size:
        raise CheckpointError(
            f"{folder}: its tokenizer has {num_tokens} tokens, but the model knows "
            f"vocab_size={vocab_size}; it is not the tokenizer of this model"
        )
    return Run(model, text.tokenizer, folder, text.chat_template, text.special_ids, text.stop_ids)


def is_gguf(path: str | Path) -> bool:
    """Whether `path` is a file by the name of GGUF files."""
    return Path(path).suffix == GGUF_SUFFIX and Path(path).is_file()


def _open_gguf(path: Path, dtype: torch.dtype) -> Run:
    loaded = gguf.load(path, dtype=dtype)
    ids = loaded.special_ids
    known = loaded.tokenizer.special_tokens | loaded.tokenizer.added_tokens
    texts = {token_id: text for text, token_id in known.items()}
    names = {PARTS[part]: texts[i] for part, i in ids.items() if part in PARTS and i in texts}
    source = loaded.chat_template
    template = None if source is None else ChatTemplate(source, names)
    stop_ids = tuple(dict.fromkeys(ids[part] for part in _ENDING_PARTS if part in ids))
    return Run(loaded.model, loaded.tokenizer, path, template, ids, stop_ids)


def _tokenizer_home(folder: Path) -> Path:
    """The folder itself, or the run that it is a checkpoint of."""
    homes = [folder, folder.parent.parent] if folder.parent.name == CHECKPOINTS_FOLDER else [folder]
    found = [home for home in homes if has_tokenizer(home)]
    if not found:
        raise CheckpointError(
            f"{homes[-1] / TOKENIZER_FILE}: missing; a run keeps its tokenizer there"
        )
    return found[0]


def checkpoint_folder(path: str | Path) -> Path:
    """The folder with the weights: `path`, or the latest checkpoint if `path` is a run."""
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such folder")
    if not path.is_dir():
        raise CheckpointError(f"{path}: is a file; expected a model folder, a checkpoint or a run")
    checkpoints = path / CHECKPOINTS_FOLDER
    if not checkpoints.is_dir():
        return path
    pointer = checkpoints / LATEST_FILE
    name = ""
    if pointer.is_file():
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    if name:
        folder = checkpoints / name
        if Path(name).name != name or not folder.is_dir():
            raise CheckpointError(f"{pointer}: names {name!r}, which is not in {checkpoints}")
        return folder
    # A kill may come between the first checkpoint and its pointer; a crash may leave that empty.
    found = [p for p in checkpoints.iterdir() if re.fullmatch(r"step-\d+", p.name)]
    if not found:
        raise CheckpointError(f"{path}: the run has no checkpoint yet")
    return max(found, key=lambda p: int(p.name.removeprefix("step-")))


def _own_config(values: Mapping[str, Any], folder: Path) -> ModelConfig:
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as err:
        reason = first_reason(err)
        raise CheckpointError(f"{folder / CONFIG_FILE}: not a model config: {reason}") from None


def save_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file; the library's I/O errors become the OSError that they are."""
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, file)
    except SafetensorError as err:
        number = re.search(r"os error (\d+)", str(err))
        if number is None:
            raise
        code = int(number.group(1))
        raise OSError(code, os.strerror(code)) from err
