"""The text side of a model folder: tokenizer, chat template, tokens that end an answer.

The files are Hugging Face's; our own folders have them too, with our tokenizer.json among them.
Read are tokenizer.json, tokenizer.model (SentencePiece) or vocab.json with merges.txt (GPT-2), and
of tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json what says
which tokens are special. Written are tokenizer.json, tokenizer_config.json, generation_config.json.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from lmworks import tokenizer
from lmworks.base.errors import CheckpointError, DataError
from lmworks.base.storage import write_json
from lmworks.models.tensor_file import read_json_object
from lmworks.tokenizer import Template, Tokenizer
from lmworks.tokenizer.chat_template import ChatTemplate

TOKENIZER_FILE: Final = "tokenizer.json"
SENTENCEPIECE_FILE: Final = "tokenizer.model"
VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"
SPECIAL_TOKENS_FILE: Final = "special_tokens_map.json"
GENERATION_CONFIG_FILE: Final = "generation_config.json"
CHAT_TEMPLATE_FILE: Final = "chat_template.jinja"
PARTS: Final = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}
"""Parts that special tokens play, and what Hugging Face calls them."""
_DEFAULT_TEMPLATE: Final = "default"
_MAX_TEXT_BYTES: Final = 64 << 20
_ADDS_BOS: Final = ("LlamaTokenizer", "GemmaTokenizer", "CodeLlamaTokenizer")


class HFText(NamedTuple):
    """Everything beside the model."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    special_ids: dict[str, int]
    """Ids by their part: bos, eos, unknown, padding."""
    stop_ids: tuple[int, ...]
    """Tokens that end an answer."""


def load_hf_text(folder: str | Path) -> HFText:
    """The text side of the model in `folder`.

    Raises:
        CheckpointError: there is no tokenizer, or a file beside it is not what it should be.
        DataError: the tokenizer's own file is not right.
    """
    folder = Path(folder)
    settings = _optional_object(folder / SPECIAL_TOKENS_FILE)
    settings |= _optional_object(folder / TOKENIZER_CONFIG_FILE)
    text_codec = _load_tokenizer(folder, settings)
    texts = {part: _token_text(settings.get(key)) for part, key in PARTS.items()}
    names = {PARTS[part]: text for part, text in texts.items() if text is not None}
    known = text_codec.special_tokens | text_codec.added_tokens
    special_ids = {part: known[text] for part, text in texts.items() if text in known}
    stop_ids = _stop_ids(folder, text_codec.vocab_size)
    if not stop_ids and "eos" in special_ids:
        stop_ids = (special_ids["eos"],)
    source = _chat_source(folder, settings)
    template = None if source is None else ChatTemplate(source, names)
    return HFText(text_codec, template, special_ids, stop_ids)


def save_hf_text(
    folder: str | Path,
    text_codec: Tokenizer,
    *,
    chat_template: str | None = None,
    special_ids: Mapping[str, int] | None = None,
    stop_ids: tuple[int, ...] = (),
    max_seq_len: int,
    format: Literal["hf", "lmworks"] = "hf",
) -> None:
    """Write the files that transformers' AutoTokenizer and generation read.

    With format="lmworks" tokenizer.json is our own, which every tokenizer has.

    Raises:
        ConfigError: this kind of tokenizer has no Hugging Face form.
        StorageError: the disk is full or read-only.
    """
    folder = Path(folder)
    ids = dict(special_ids or {})
    if "eos" not in ids and text_codec.eot_id is not None:
        ids["eos"] = text_codec.eot_id
    tokenizer.save(text_codec, folder / TOKENIZER_FILE, format=format)
    names = {i: text for text, i in (text_codec.special_tokens | text_codec.added_tokens).items()}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_seq_len,
        "clean_up_tokenization_spaces": False,
    }
    settings |= {PARTS[p]: names[i] for p, i in ids.items() if p in PARTS and i in names}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    write_json(folder / TOKENIZER_CONFIG_FILE, settings)
    stops = list(stop_ids) or [ids[part] for part in ("eos",) if part in ids]
    generation: dict[str, Any] = {
        "bos_token_id": ids.get("bos"),
        "pad_token_id": ids.get("padding"),
    }
    generation["eos_token_id"] = stops[0] if len(stops) == 1 else stops or None
    write_json(
        folder / GENERATION_CONFIG_FILE, {k: v for k, v in generation.items() if v is not None}
    )


def has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer is there in a form that can be read."""
    names = (TOKENIZER_FILE, SENTENCEPIECE_FILE, VOCABULARY_FILE)
    return any((folder / name).is_file() for name in names)


def _load_tokenizer(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    if (folder / TOKENIZER_FILE).is_file():
        return tokenizer.load(folder / TOKENIZER_FILE)
    if (folder / SENTENCEPIECE_FILE).is_file():
        text_codec = tokenizer.load(folder / SENTENCEPIECE_FILE)
        return _with_ends(text_codec, settings)
    if (folder / VOCABULARY_FILE).is_file() and (folder / MERGES_FILE).is_file():
        return _from_vocabulary(folder, settings)
    raise CheckpointError(
        f"{folder}: no tokenizer; expected {TOKENIZER_FILE}, {SENTENCEPIECE_FILE}, or "
        f"{VOCABULARY_FILE} with {MERGES_FILE}"
    )


def _with_ends(text_codec: Tokenizer, settings: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer with BOS and EOS where transformers puts them around a text."""
    known = text_codec.special_tokens | text_codec.added_tokens
    adds_bos = settings.get("add_bos_token", settings.get("tokenizer_class") in _ADDS_BOS)
    bos = known.get(_token_text(settings.get("bos_token")) or "<s>") if adds_bos else None
    eos = known.get(_token_text(settings.get("eos_token")) or "</s>")
    eos = eos if settings.get("add_eos_token") else None
    text_codec.template = None
    if bos is not None or eos is not None:
        text_codec.template = Template.around(bos_id=bos, eos_id=eos)
    return text_codec


def _from_vocabulary(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """GPT-2's two files: byte-level BPE with its pre-tokenizer."""
    from lmworks.tokenizer import huggingface

    vocab = read_json_object(folder / VOCABULARY_FILE)
    lines = _read_text(folder / MERGES_FILE).split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    texts = {_token_text(settings.get(key)) for key in PARTS.values()} | {"<|endoftext|>"}
    special = [
        {"id": vocab[text], "content": text, "special": True} for text in texts if text in vocab
    ]
    prefix_space = settings.get("add_prefix_space", False) is True
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "use_regex": True}
    try:
        return huggingface.from_json(
            {
                "added_tokens": sorted(special, key=lambda entry: str(entry["id"])),
                "pre_tokenizer": byte_level,
                "decoder": {"type": "ByteLevel"},
                "model": {"type": "BPE", "vocab": vocab, "merges": merges},
            }
        )
    except DataError as err:
        raise DataError(f"{folder / VOCABULARY_FILE}: {err}") from None


def _stop_ids(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """Of the generation config, or where it says nothing, of the model's."""
    for name in (GENERATION_CONFIG_FILE, "config.json"):
        value = _optional_object(folder / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for i in ids:
            if type(i) is not int or not 0 <= i < vocab_size:
                raise CheckpointError(
                    f"{folder / name}: eos_token_id={value!r:.60} must be a token id below "
                    f"{vocab_size}, or a list of some"
                )
        if ids:
            return tuple(ids)
    return ()


def _chat_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Jinja text; of several named ones the default."""
    if (folder / CHAT_TEMPLATE_FILE).is_file():
        return _read_text(folder / CHAT_TEMPLATE_FILE)
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = [v for v in value if isinstance(v, dict) and v.get("name") == _DEFAULT_TEMPLATE]
        value = named[0].get("template") if named else None
    if value is not None and not isinstance(value, str):
        raise CheckpointError(
            f"{folder / TOKENIZER_CONFIG_FILE}: chat_template={value!r:.60} must be a text, or a "
            "list of named ones"
        )
    return value


def _token_text(value: Any) -> str | None:
    """A special token is its text, or an object with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _optional_object(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.is_file() else {}


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_TEXT_BYTES + 1)
        if len(data) > _MAX_TEXT_BYTES:
            raise CheckpointError(f"{file}: larger than {_MAX_TEXT_BYTES} bytes")
        return data.decode("utf-8")
    except UnicodeDecodeError as err:
        raise CheckpointError(f"{file}: not UTF-8 at byte {err.start}") from None
    except OSError as err:
        raise CheckpointError(f"{file}: cannot be read ({err.strerror})") from None
