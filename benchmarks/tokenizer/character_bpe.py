"""SentencePiece BPE: CPU seconds of this library, `sentencepiece` and Hugging Face `tokenizers`.

    python benchmarks/tokenizer/character_bpe.py TEXT [--mb 6] [--model tokenizer.model] [--hf-mb 1]

Documents end with <|endoftext|>; each is encoded by itself, on one thread. Without a model one is
trained on the start of the text as Llama 2's was (32,000 pieces, byte fallback, digits split).
First and second pass are of the same process; import and loading are not in them.
"""

import argparse
import io
import time
from collections.abc import Callable
from pathlib import Path

from lmworks.tokenizer import sentencepiece
from lmworks.tokenizer.sentencepiece_huggingface import to_huggingface

TRAINING_CHARS = 4_000_000
Encode = Callable[[list[str]], list[list[int]]]


def _trained(text: str) -> bytes:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=(line for line in text[:TRAINING_CHARS].split("\n") if line),
        model_writer=model,
        model_type="bpe",
        vocab_size=32_000,
        hard_vocab_limit=False,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return model.getvalue()


def _timed(name: str, encode: Encode, documents: list[str]) -> list[list[int]]:
    size_mb = sum(len(document.encode()) for document in documents) / 1e6
    rates = []
    for _ in range(2):
        begin_s = time.process_time()
        ids = encode(documents)
        rates.append(size_mb / (time.process_time() - begin_s))
    print(
        f"{name:14} {size_mb:5.1f} MB  MB per CPU s: {rates[0]:6.1f} first, {rates[1]:6.1f} second"
    )
    return ids


def main() -> None:
    """Measure and compare ids."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--mb", type=float, default=6.0)
    parser.add_argument("--hf-mb", type=float, default=1.0)
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    import sentencepiece as package
    import tokenizers

    with args.text.open("rb") as file:
        text = file.read(int(args.mb * 1e6)).decode("utf-8", "ignore")
    model = args.model.read_bytes() if args.model else _trained(text)
    documents = text.split("<|endoftext|>")
    begin_s = time.process_time()
    ours = sentencepiece.from_model(model)
    print(f"{ours.vocab_size:,} pieces, loaded in {time.process_time() - begin_s:.2f} CPU s")
    peer = package.SentencePieceProcessor(model_proto=model)
    found = _timed(
        "lmworks", lambda d: ours.encode_batch(d, num_threads=1, disallowed_special=()), documents
    )
    expected = _timed("sentencepiece", lambda d: [peer.encode(text) for text in d], documents)
    print("ids equal" if found == expected else "IDS DIFFER")
    slow = tokenizers.Tokenizer.from_str(to_huggingface(ours))
    num_few = max(1, int(len(documents) * args.hf_mb / args.mb))
    few = documents[:num_few]
    ids = _timed("tokenizers", lambda d: [slow.encode(text).ids for text in d], few)
    print("ids equal" if ids == expected[:num_few] else "IDS DIFFER")


if __name__ == "__main__":
    main()
