"""From tokens to text and back: which tokens stand for a word, and a chat that grows.

python examples/03_tokens_and_text.py [WORD]
"""

import sys
from pathlib import Path

from lmworks.tokenizer import train_bpe

TEXT = Path(__file__).parent / "text" / "persuasion.txt"


def main(word: str) -> None:
    """Find the tokens of `word` in a novel, then encode a chat turn by turn."""
    tokenizer = train_bpe([TEXT], vocab_size=1000)
    text = TEXT.read_text(encoding="utf-8")

    # Offsets tie each token to its characters, so a place in the text leads to its tokens.
    encoding = tokenizer.encode_with_offsets(text, disallowed_special=())
    begin = text.find(word)
    if begin < 0:
        sys.exit(f"{word!r} is not in {TEXT.name}")
    first = encoding.token_at(begin)
    last = encoding.token_at(begin + len(word) - 1)
    assert first is not None
    assert last is not None
    pieces = [text[a:b] for a, b in encoding.offsets[first : last + 1]]
    print(f"tokens of {word!r} at character {begin}: {pieces}")

    # Each turn is put at the end. What a model has read of the chat so far stays right: the ids
    # before `num_stable_ids` never change, and only those behind them are encoded again.
    chat = tokenizer.growing()
    for turn in ("User: Who is she?\n", "Bot: The second daughter.\n", "User: And proud?\n"):
        stable = chat.num_stable_ids
        chat.append(turn)
        print(f"{len(chat.ids):3} tokens, {len(chat.ids) - stable:2} new or changed: {turn!r}")
    assert chat.ids.tolist() == tokenizer.encode(chat.text)

    # The last turn is regenerated: the text is cut back, and so are the ids.
    chat.truncate(chat.text.rindex("User:"))
    print(f"{len(chat.ids):3} tokens after taking the last turn back")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "Kellynch")
