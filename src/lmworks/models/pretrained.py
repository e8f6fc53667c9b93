"""Models on disk: `model.safetensors` and `config.json` in one folder, never pickle.

    save_pretrained("out/model", model)
    model = load_pretrained("runs/demo")          # the latest checkpoint of a run
    run = open_run("runs/demo")                   # model and tokenizer

A path may be such a folder, a checkpoint of a run, or a run. Files are not trusted: names, shapes
and dtypes are compared with the config before anything is allocated. Foreign formats belong to
other modules.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lmworks import tokenizer
from lmworks.base.errors import CheckpointError
from lmworks.base.storage import atomic_file, write_json
from lmworks.models.config import ModelConfig
from lmworks.models.decoder import Decoder
from lmworks.models.state import build_decoder
from lmworks.models.tensor_file import Header, TensorFile
from lmworks.tokenizer import Tokenizer

WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE = "model.safetensors", "config.json", "tokenizer.json"
CHECKPOINTS_FOLDER, LATEST_FILE = "checkpoints", "latest"


class Run(NamedTuple):
    """A trained model with the tokenizer that it was trained with."""

    model: Decoder
    tokenizer: Tokenizer
    path: Path
    """Folder that the weights came from."""


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
    """The model in `path`, in evaluation mode, weights in `dtype` or the one they were saved in.

    Raises:
        CheckpointError: a file is missing, truncated or not what it says, or the tensors are those
            of another architecture; names the first missing, unexpected and mis-shaped ones.
    """
    folder = checkpoint_folder(path)
    config = load_config(folder)
    with TensorFile(folder / WEIGHTS_FILE) as file:
        return build_decoder(config, _OwnWeights(file), dtype=dtype)


def open_run(path: str | Path) -> Run:
    """Model and tokenizer of a run, of one of its checkpoints, or of a folder that holds both."""
    folder = checkpoint_folder(path)
    homes = [folder, folder.parent.parent] if folder.parent.name == CHECKPOINTS_FOLDER else [folder]
    files = [home / TOKENIZER_FILE for home in homes]
    found = [file for file in files if file.is_file()]
    if not found:
        raise CheckpointError(f"{files[-1]}: missing; a run keeps its tokenizer there")
    model, text_codec = load_pretrained(folder), tokenizer.load(found[0])
    if text_codec.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{found[0]}: {text_codec.vocab_size} tokens, but the model in {folder} knows "
            f"vocab_size={model.config.vocab_size}; it is not the tokenizer of this model"
        )
    return Run(model, text_codec, folder)


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


def load_config(folder: Path) -> ModelConfig:
    """The architecture in `folder`/config.json."""
    file = folder / CONFIG_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing; {folder} is not a model folder") from None
    except (OSError, ValueError, RecursionError) as err:
        raise CheckpointError(f"{file}: not readable as JSON ({err})") from None
    if isinstance(values, dict) and "model_type" in values:
        raise CheckpointError(
            f"{file}: a Hugging Face config (model_type={values['model_type']!r}); this loads only "
            "folders that lmworks wrote"
        )
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as err:
        raise CheckpointError(f"{file}: not a model config: {_first_reason(err)}") from None


def _first_reason(err: ValidationError) -> str:
    first: Any = err.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


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
