"""Tokenizers and chat templates come along, from every form that folders have them in."""

import json
from pathlib import Path

import pytest

from lmworks.base.errors import CheckpointError, ConfigError, DataError
from lmworks.models.hf_text import load_hf_text, save_hf_text
from lmworks.tokenizer import BPETokenizer, ByteTokenizer, Template, train_bpe_from_iterator
from lmworks.tokenizer.huggingface import to_json

transformers = pytest.importorskip("transformers")

TEXTS = ["Hello world, hello again", "the lazy dog", " naïve  日本語 🙂\n\n42"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def bpe() -> BPETokenizer:
    return train_bpe_from_iterator(
        TEXTS * 20, vocab_size=320, pattern="gpt2", special_tokens=SPECIALS
    )


@pytest.fixture
def folder(tmp_path: Path, bpe: BPETokenizer) -> Path:
    ids = bpe.special_tokens
    save_hf_text(
        tmp_path,
        bpe,
        chat_template=CHAT,
        special_ids={"eos": ids["<|im_end|>"], "bos": ids["<|endoftext|>"]},
        stop_ids=(ids["<|im_end|>"], ids["<|endoftext|>"]),
        max_seq_len=64,
    )
    return tmp_path


def change(file: Path, **values: object) -> None:
    old = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(old | values))


def test_what_was_written_is_read_again(folder, bpe):
    text = load_hf_text(folder)
    assert text.tokenizer.fingerprint == bpe.fingerprint
    assert text.special_ids == {
        "eos": bpe.special_tokens["<|im_end|>"],
        "bos": bpe.special_tokens["<|endoftext|>"],
    }
    assert text.stop_ids == (text.special_ids["eos"], text.special_ids["bos"])
    assert text.chat_template is not None
    assert text.chat_template.source == CHAT


def test_transformers_reads_what_was_written(folder, bpe):
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert peer(text, add_special_tokens=False)["input_ids"] == bpe.encode(text)
        assert peer.decode(bpe.encode(text)) == text
    theirs = peer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    ours = load_hf_text(folder).chat_template
    assert ours is not None
    assert ours.render(TALK, add_generation_prompt=True) == theirs
    assert peer.eos_token == "<|im_end|>"
    generation = transformers.GenerationConfig.from_pretrained(folder)
    assert generation.eos_token_id == list(load_hf_text(folder).stop_ids)


def test_templates_name_special_tokens(folder):
    change(folder / "tokenizer_config.json", chat_template="{{ bos_token }}{{ eos_token }}")
    template = load_hf_text(folder).chat_template
    assert template is not None
    assert template.render([]) == "<|endoftext|><|im_end|>"


def test_template_in_a_file_of_its_own_counts_first(folder):
    (folder / "chat_template.jinja").write_text("own")
    template = load_hf_text(folder).chat_template
    assert template is not None
    assert template.source == "own"


def test_of_named_templates_the_default_is_taken(folder):
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    change(folder / "tokenizer_config.json", chat_template=named)
    template = load_hf_text(folder).chat_template
    assert template is not None
    assert template.source == "d"


def test_vocabulary_and_merges_are_read_as_gpt2s(tmp_path, bpe):
    value = json.loads(to_json(bpe))
    vocab = value["model"]["vocab"] | {e["content"]: e["id"] for e in value["added_tokens"]}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    merges = [m if isinstance(m, str) else " ".join(m) for m in value["model"]["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    tokens = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens))
    text = load_hf_text(tmp_path)
    for sample in TEXTS:
        assert text.tokenizer.encode(sample) == bpe.encode(sample)
    assert text.special_ids["eos"] == bpe.special_tokens["<|im_end|>"]
    assert text.stop_ids == (bpe.special_tokens["<|im_end|>"],)


@pytest.mark.parametrize("adds_bos", [True, False])
def test_sentencepiece_models_are_read_with_their_bos(tmp_path, adds_bos):
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text").write_text("\n".join(TEXTS * 30))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=310,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    values = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    change(tmp_path / "tokenizer_config.json", **values, add_bos_token=adds_bos)
    text = load_hf_text(tmp_path)
    peer = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    assert text.tokenizer.encode(TEXTS[0]) == peer.encode(TEXTS[0])
    assert text.tokenizer.template == (Template.around(bos_id=1) if adds_bos else None)
    assert text.stop_ids == (2,)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", "not valid JSON"),
        ("tokenizer.json", "{}", "neither our format"),
        ("tokenizer_config.json", "[]", "not readable as JSON"),
        ("tokenizer_config.json", '{"chat_template": 3}', "must be a text"),
        ("generation_config.json", '{"eos_token_id": [1, "x"]}', "must be a token id below"),
        ("generation_config.json", '{"eos_token_id": 99999999}', "must be a token id below"),
        ("generation_config.json", "[" * 100_000, "nested too deeply"),
        ("chat_template.jinja", "\xff", "not UTF-8"),
        ("special_tokens_map.json", '{"a": NaN}', "NaN is not a JSON number"),
    ],
)
def test_broken_files_are_refused_by_name(folder, file, content, message):
    (folder / file).write_text(content, encoding="latin-1")
    with pytest.raises((CheckpointError, DataError), match=message) as err:
        load_hf_text(folder)
    assert file in str(err.value)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no tokenizer; expected tokenizer\.json"):
        load_hf_text(tmp_path)


def test_tokenizers_without_a_hugging_face_form_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="byte tokenizer has no 'hf' format"):
        save_hf_text(tmp_path, ByteTokenizer(), max_seq_len=8)
