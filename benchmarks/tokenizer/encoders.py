"""The contenders of the encoding benchmarks: how each loads a vocabulary and encodes documents.

Every one is called the way its documentation calls fastest: a whole batch, flat arrays where it
has them. Vocabularies are OpenAI's rank files; libraries that do not read those get a
tokenizer.json made from them, with the published regular expression that they recognise.
"""

import base64
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from texts import END, documents

from lmworks.tokenizer import BPETokenizer, load, load_tiktoken, save
from lmworks.tokenizer.pretokenize import PATTERNS

Encoded = Any
"""What a library returns for a batch."""


@dataclass(frozen=True)
class Vocabulary:
    """One vocabulary in the files that the contenders load."""

    name: str
    folder: Path

    @property
    def pattern(self) -> str:
        """Name of its pre-tokenizer pattern."""
        return {"r50k": "gpt2"}.get(self.name, self.name)

    @property
    def end_id(self) -> int:
        """Id of <|endoftext|>, the only special token used here."""
        return {"r50k": 50256, "cl100k": 100257, "o200k": 199999}[self.name]

    @property
    def ranks(self) -> Path:
        """The .tiktoken file."""
        return self.folder / f"{self.name}_base.tiktoken"

    @property
    def own(self) -> Path:
        """Our JSON."""
        return self.folder / f"{self.name}.lmworks.json"

    @property
    def hf(self) -> Path:
        """tokenizer.json."""
        return self.folder / f"{self.name}.json"

    @property
    def hf_for_peers(self) -> Path:
        """tokenizer.json that the fast peers accept; see `_adapt_to_peers`."""
        return self.folder / f"{self.name}.peers.json"

    def read_ranks(self) -> dict[bytes, int]:
        """Token bytes to id."""
        lines = self.ranks.read_bytes().splitlines()
        return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}


def write_vocabulary(name: str, ranks_folder: Path, folder: Path) -> Vocabulary:
    """Bring a rank file and the JSON files made from it into a folder."""
    vocabulary = Vocabulary(name, folder)
    vocabulary.ranks.write_bytes((ranks_folder / vocabulary.ranks.name).read_bytes())
    tokenizer = load_tiktoken(vocabulary.ranks, vocabulary.pattern, {END: vocabulary.end_id})
    tokenizer.save(vocabulary.own)
    save(tokenizer, vocabulary.hf, format="hf")
    content = json.loads(vocabulary.hf.read_text("utf-8"))
    _adapt_to_peers(content, tokenizer)
    vocabulary.hf_for_peers.write_text(json.dumps(content), "utf-8")
    return vocabulary


def _adapt_to_peers(content: dict[str, Any], tokenizer: BPETokenizer) -> None:
    """Unused ids become added tokens, and cl100k's expression gets the spelling of Llama 3.

    snaptokens and fastokens refuse holes; they and gigatoken recognise cl100k by that spelling,
    which differs from tiktoken's in white space with a line end in it at the end of a text.
    """
    used = set(content["model"]["vocab"].values())
    like = content["added_tokens"][0]
    for token_id in set(range(tokenizer.vocab_size)) - used:
        name = f"<|unused_{token_id}|>"
        content["added_tokens"].append({**like, "id": token_id, "content": name})
        content["model"]["vocab"][name] = token_id
    if tokenizer.pattern == "cl100k":
        content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = PATTERNS["llama3"]


# ---- contenders ----


@dataclass(frozen=True)
class Encoder:
    """A loaded tokenizer; only `encode` is timed."""

    encode: Callable[[Any], Encoded]
    """From what `prepare` made of a text file to the library's result."""
    flat_ids: Callable[[Encoded], Any]
    """The result as ids in a row, uint32."""
    prepare: Callable[[Path], Any] = documents
    """From a text file to the library's best input: str documents unless given."""


Maker = Callable[[Vocabulary, int], Encoder]


def _documents_as_bytes(path: Path) -> list[bytes]:
    return [doc.encode() for doc in documents(path)]


def _own(vocabulary: Vocabulary) -> BPETokenizer:
    tokenizer = load(vocabulary.own)
    assert isinstance(tokenizer, BPETokenizer), "written by write_vocabulary"
    return tokenizer


def lmworks(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    tokenizer = _own(vocabulary)
    return Encoder(
        lambda docs: tokenizer.encode_batch_to_numpy(docs, num_threads=num_threads),
        lambda encoded: encoded[0],
    )


def lmworks_bytes(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    encoder = lmworks(vocabulary, num_threads)
    return Encoder(encoder.encode, encoder.flat_ids, _documents_as_bytes)


def lmworks_lists(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    tokenizer = _own(vocabulary)
    return Encoder(
        lambda docs: tokenizer.encode_batch(docs, num_threads=num_threads), _flat_from_lists
    )


def _gigatoken(vocabulary: Vocabulary) -> Any:
    import awkward  # noqa: F401  # gigatoken's results are awkward arrays; it imports them late
    import gigatoken

    scheme = {"gpt2": "gpt2", "cl100k": "gpt4", "o200k": "o200k"}[vocabulary.pattern]
    return gigatoken.Tokenizer.from_tiktoken(vocabulary.ranks, scheme, {END: vocabulary.end_id})


def gigatoken(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    tokenizer = _gigatoken(vocabulary)
    parallel = num_threads > 1
    return Encoder(lambda docs: tokenizer.encode_batch(docs, parallel=parallel), _flat_from_awkward)


def gigatoken_bytes(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    import gigatoken as peer

    encoder = gigatoken(vocabulary, num_threads)
    return Encoder(
        encoder.encode, encoder.flat_ids, lambda path: peer.BytesSource(path.read_bytes(), END)
    )


def gigatoken_files(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    import gigatoken as peer

    tokenizer = _gigatoken(vocabulary)
    parallel = num_threads > 1
    return Encoder(
        lambda source: tokenizer.encode_files(source, parallel=parallel),
        _flat_from_awkward,
        lambda path: peer.TextFileSource([path], END),
    )


def gigatoken_lists(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    tokenizer = _gigatoken(vocabulary)
    parallel = num_threads > 1
    return Encoder(
        lambda docs: tokenizer.encode_batch_list(docs, parallel=parallel), _flat_from_lists
    )


def fastokens(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    import fastokens as peer

    if vocabulary.name == "r50k":  # it reads the other two rank files only
        tokenizer = peer.Tokenizer.from_file(str(vocabulary.hf_for_peers))
    else:
        tokenizer = _fastokens_from_ranks(vocabulary)
    return Encoder(tokenizer.encode_batch_flat, _flat_from_bytes)


def _fastokens_from_ranks(vocabulary: Vocabulary) -> Any:
    import fastokens as peer

    return peer.Tokenizer.from_tiktoken(str(vocabulary.ranks), encoding=f"{vocabulary.name}_base")


def snaptokens(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    import snaptokens as peer

    tokenizer = peer.Tokenizer.from_file(str(vocabulary.hf_for_peers))
    return Encoder(tokenizer.encode_batch_flat, _flat_from_bytes)


def tiktoken(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    encoding = tiktoken_encoding(vocabulary)
    return Encoder(
        lambda docs: encoding.encode_ordinary_batch(docs, num_threads=num_threads),
        _flat_from_lists,
    )


def tiktoken_encoding(vocabulary: Vocabulary) -> Any:
    """tiktoken's Encoding of a rank file, with the regular expression that tiktoken gives it."""
    import tiktoken as peer
    from tiktoken_ext.openai_public import r50k_pat_str

    # For GPT-2 its own spelling: equal, faster in its engine, and no stack overflow on long runs.
    pattern = r50k_pat_str if vocabulary.name == "r50k" else PATTERNS[vocabulary.pattern]
    return peer.Encoding(
        vocabulary.name,
        pat_str=pattern,
        mergeable_ranks=vocabulary.read_ranks(),
        special_tokens={END: vocabulary.end_id},
    )


def hf_tokenizers(vocabulary: Vocabulary, num_threads: int) -> Encoder:
    import tokenizers as peer

    tokenizer = peer.Tokenizer.from_file(str(vocabulary.hf))
    return Encoder(
        lambda docs: tokenizer.encode_batch_fast(docs, add_special_tokens=False),
        lambda encoded: _flat_from_lists([e.ids for e in encoded]),
    )


ENCODERS: Mapping[str, Maker] = {
    "lmworks": lmworks,
    "lmworks, bytes": lmworks_bytes,
    "lmworks, lists": lmworks_lists,
    "gigatoken": gigatoken,
    "gigatoken, bytes": gigatoken_bytes,
    "gigatoken, files": gigatoken_files,
    "gigatoken, lists": gigatoken_lists,
    "fastokens": fastokens,
    "snaptokens": snaptokens,
    "tiktoken": tiktoken,
    "tokenizers": hf_tokenizers,
}
"""By default from str documents to a flat array; tiktoken and tokenizers have lists only."""

PACKAGES = ["lmworks", "gigatoken", "fastokens", "snaptokens", "tiktoken", "tokenizers"]


def package_of(contender: str) -> str:
    """The package that a contender measures."""
    return contender.partition(",")[0]


def is_installed(contender: str) -> bool:
    """Whether its package is here."""
    return importlib.util.find_spec(package_of(contender)) is not None


def thread_env(num_threads: int) -> dict[str, str]:
    """Environment in which every contender uses that many threads."""
    return {
        "RAYON_NUM_THREADS": str(num_threads),
        "FASTOKENS_BPE_THREADS": str(num_threads),
        "TOKENIZERS_PARALLELISM": "true" if num_threads > 1 else "false",
    }


# ---- loading alone: format -> contender -> loader ----


def loaders(vocabulary: Vocabulary) -> dict[str, dict[str, Callable[[], object]]]:
    """What loads the vocabulary from which file; the imports are done when this returns."""
    import fastokens as fast
    import gigatoken as giga
    import snaptokens as snap
    import tokenizers as hugging

    specials = {END: vocabulary.end_id}
    ranks, hf, peers = vocabulary.ranks, str(vocabulary.hf), str(vocabulary.hf_for_peers)
    from_ranks: dict[str, Callable[[], object]] = {
        "lmworks": lambda: load_tiktoken(ranks, vocabulary.pattern, specials),
        "gigatoken": lambda: _gigatoken(vocabulary),
        "tiktoken": lambda: tiktoken_encoding(vocabulary),
    }
    if vocabulary.name != "r50k":
        from_ranks["fastokens"] = lambda: _fastokens_from_ranks(vocabulary)
    return {
        ".tiktoken": from_ranks,
        "tokenizer.json": {
            "lmworks": lambda: load(hf),
            "gigatoken": lambda: giga.Tokenizer(peers),
            "fastokens": lambda: fast.Tokenizer.from_file(peers),
            "snaptokens": lambda: snap.Tokenizer.from_file(peers),
            "tokenizers": lambda: hugging.Tokenizer.from_file(hf),
        },
        "our JSON": {"lmworks": lambda: load(vocabulary.own)},
    }


def _flat_from_lists(encoded: list[list[int]]) -> Any:
    import numpy as np

    parts = [np.asarray(ids, np.uint32) for ids in encoded]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint32)


def _flat_from_bytes(encoded: tuple[bytes, bytes]) -> Any:
    import numpy as np

    return np.frombuffer(encoded[0], np.uint32)


def _flat_from_awkward(encoded: Any) -> Any:
    import awkward
    import numpy as np

    return np.asarray(awkward.flatten(encoded), np.uint32)
