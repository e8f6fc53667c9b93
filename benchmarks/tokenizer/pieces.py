"""Are the native scanners' pieces those of the `regex` module? Exits with 1 where they are not.

Compares the scanner of one piece, for each pattern, with the published expression and, where a
model applies several, with all steps one after another (pretokenize.STEPS); and the scanner of
whole stretches of text with the scanner of one piece:
    python benchmarks/tokenizer/pieces.py --corpus FILE...     whole files, in parts of about 1 MB
    python benchmarks/tokenizer/pieces.py --code-points        every code point in every context
    python benchmarks/tokenizer/pieces.py --fuzz 10000000      random strings of awkward characters
With --no-regex only the two scanners are compared, which is many times faster.
The unit and property tests do the same in small: tests/unit/tokenizer/test_pretokenize.py.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from itertools import accumulate, product
from pathlib import Path

from lmworks import _text
from lmworks.tokenizer.pretokenize import PATTERNS, STEPS, compile_expression

# What may stand before and after a character: letters, upper, lower and without case; digit; white
# space and line ends; apostrophe; marks; symbols, ASCII or not; ideographs, as letter, number and
# symbol; control; nothing.
CONTEXTS = [
    "あ",
    "A",
    "a",
    "7",
    " ",
    "\t",
    "\n",
    "'",
    "\u0301",
    "!",
    "。",
    "中",
    "〇",
    "⺀",
    "\x01",
]
CONTEXTS += ["゛", "\u3040", " '", "'l", "\xa0"]

# Each decides differently in some pattern; the last ones are not UTF-8.
PARTS = [
    *"aAbZ \t\n\r's1٣½éÉǅʰあ中゛゠・ー々〇⺀⼀龥龦ヿ〱!/\\_$^`~。、€👍ʼᄀ가Ａ１ⅷ²",
    "  ", "re", "LL", "'VE", "'s", "'t", "22", "中文", "ſ", "\u0301", "\u0903", "\u3099",
    "\u3040", "\u3097", "\u309b", "\u3100", "\U00016ff0", "\U00016fe2", "\x00", "\x01", "\x7f",
    "\xad", "\u200d", "\ufeff", "\ue000", "\u0378", "\xa0", "\u3000", "\u2028", "\x85", "\x1c",
    "\x0b", "̈",
]  # fmt: skip
BROKEN = [b"\xff", b"\x80", b"\xc3", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf0\x9f", b"\xf4\x90\x80\x80"]


def first_difference(text: bytes, pattern: str, *, with_regex: bool) -> str | None:
    """What differs on the text, or None: pieces by bits, by the expression, by its steps."""
    pieces = _text.split(text, pattern)
    ends = _text.scan_piece_ends(text, pattern)
    if ends != list(accumulate(map(len, pieces))):
        by_bits = [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return _explain(text, f"{pattern}, by bits", by_bits, pieces)
    if not with_regex:
        return None
    decoded = text.decode("utf-8", "surrogateescape")
    expected = _encoded(compile_expression(PATTERNS[pattern]).findall(decoded))
    if pieces != expected:
        return _explain(text, pattern, pieces, expected)
    if pattern in STEPS:
        parts = [decoded]
        for step in STEPS[pattern]:
            parts = [piece for part in parts for piece in isolated(part, step)]
        expected = _encoded(parts)
        if pieces != expected:
            return _explain(text, f"{pattern}, by steps", pieces, expected)
    return None


def isolated(text: str, expression: str) -> Iterator[str]:
    """Matches and what lies between them, as Hugging Face's Split("Isolated") cuts."""
    last = 0
    for match in compile_expression(expression).finditer(text):
        if match.start() > last:
            yield text[last : match.start()]
        yield match.group()
        last = match.end()
    if last < len(text):
        yield text[last:]


def _encoded(pieces: list[str]) -> list[bytes]:
    return [piece.encode("utf-8", "surrogateescape") for piece in pieces]


def _explain(text: bytes, pattern: str, pieces: list[bytes], expected: list[bytes]) -> str:
    pairs = zip(pieces, expected, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(pieces), len(expected)))
    begin = sum(map(len, expected[:at]))
    return (
        f"{pattern}: piece {at} at byte {begin} is {pieces[at : at + 1]}, should be "
        f"{expected[at : at + 1]}; around it {text[max(begin - 20, 0) : begin + 40]!r}"
    )


def parts_of_file(path: Path, num_bytes: int = 1 << 20) -> Iterator[bytes]:
    """The file in parts that end with a document or, where none ends, anywhere."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(num_bytes):
            rest += block
            cut = rest.rfind(b"<|endoftext|>")
            if cut >= 0 or len(rest) > 8 * num_bytes:
                cut = cut + 13 if cut >= 0 else len(rest)
                yield rest[:cut]
                rest = rest[cut:]
    if rest:
        yield rest


def texts_of_code_points() -> Iterator[bytes]:
    """All code points (surrogates as bytes that are not UTF-8), after and before each context."""
    codes = range(sys.maxunicode + 1)
    for context in CONTEXTS:
        yield context.join(map(chr, codes)).encode("utf-8", "surrogatepass")
    borders = border_characters()
    for before, after in product(CONTEXTS, repeat=2):
        text = "".join([f"{before}{character}{after}" for character in borders])
        yield text.encode("utf-8", "surrogatepass")
    # At the start and at the end of a text.
    for character, context in product(borders, ["", *CONTEXTS]):
        yield f"{character}{context}".encode("utf-8", "surrogatepass")
        yield f"{context}{character}".encode("utf-8", "surrogatepass")


def border_characters() -> list[str]:
    """The first and the last of each run of code points that no pattern tells apart."""
    text = "".join(map(chr, range(sys.maxunicode + 1)))
    kinds = ["Lu", "Lt", "Ll", "Lm", "Lo", "M", "N", "P", "S", "Z"]
    kinds += ["Cc", "Cf", "Cs", "Co", "Cn", "Han"]
    found = set("".join(PARTS))
    for expression in [*(rf"\p{{{kind}}}+" for kind in kinds), r"\s+", "[一-龥぀-ヿ]+"]:
        for match in compile_expression(expression).finditer(text):
            found.update({match.group()[0], match.group()[-1]})
    return sorted(found)


def random_texts(count: int, seed: int) -> Iterator[bytes]:
    """Short strings of PARTS and BROKEN."""
    rng = random.Random(seed)
    parts = [part.encode() for part in PARTS] + BROKEN
    for _ in range(count):
        yield b"".join(rng.choices(parts, k=rng.randint(1, 9)))


def compare(name: str, texts: Iterator[bytes], patterns: list[str], *, with_regex: bool) -> bool:
    """Whether all pieces of all texts are right; prints one line."""
    begin_s = time.process_time()
    num_texts = num_bytes = 0
    for text in texts:
        num_texts += 1
        num_bytes += len(text)
        for pattern in patterns:
            difference = first_difference(text, pattern, with_regex=with_regex)
            if difference:
                print(f"{name}: DIFFERENT after {num_texts:,} texts: {difference}")
                return False
    cpu_s = time.process_time() - begin_s
    print(
        f"{name}: equal on {num_texts:,} texts of {num_bytes / 1e6:,.1f} MB in all, "
        f"{len(patterns)} patterns ({', '.join(patterns)}), {cpu_s:,.0f} CPU s",
        flush=True,
    )
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpus", nargs="+", type=Path, default=[], metavar="FILE")
    parser.add_argument("--code-points", action="store_true")
    parser.add_argument("--fuzz", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--regex", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--patterns", nargs="+", choices=list(PATTERNS), default=list(PATTERNS))
    args = parser.parse_args()
    texts = [(path.name, parts_of_file(path)) for path in args.corpus]
    if args.code_points:
        texts.append(("code points", texts_of_code_points()))
    if args.fuzz:
        texts.append((f"random strings, seed {args.seed}", random_texts(args.fuzz, args.seed)))
    results = [
        compare(name, of_name, args.patterns, with_regex=args.regex) for name, of_name in texts
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
