"""Train a byte-level BPE tokenizer, use it, and save it in three formats.

python examples/01_train_a_tokenizer.py [OUT_FOLDER]
"""

import sys
from pathlib import Path

from lmworks.tokenizer import load, save, train_bpe

TEXT = Path(__file__).parent / "text" / "persuasion.txt"


def main(out: Path) -> None:
    """Train on one novel and show what the vocabulary does to a sentence."""
    tokenizer = train_bpe([TEXT], vocab_size=1000, pattern="gpt2")
    sentence = "She had been forced into prudence in her youth."
    ids = tokenizer.encode(sentence)
    print(f"{len(sentence)} characters, {len(ids)} tokens:")
    print("|".join(tokenizer.decode([i]) for i in ids))

    # A stream of ids becomes text as it arrives; half characters are held back.
    decoder = tokenizer.stream_decoder()
    text = "".join(decoder.feed(i) for i in tokenizer.encode("café ☕")) + decoder.finish()
    assert text == "café ☕"

    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(out / "tokenizer.json")
    save(tokenizer, out / "huggingface.json", format="hf")
    save(tokenizer, out / "ranks.tiktoken", format="tiktoken")
    assert load(out / "huggingface.json").encode(sentence) == ids
    print(f"saved in {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example_tokenizer"))
