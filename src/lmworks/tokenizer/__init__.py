"""Tokenizers: character, byte, word and byte-level BPE behind one interface. No torch.

tokenizer = train_bpe([Path("corpus.txt")], vocab_size=10_000)
tokenizer.encode("Hello")        # list[int]
tokenizer.save("tokenizer.json") # our own format; `load` reads it, and Hugging Face's
"""

from lmworks.tokenizer.base import Tokenizer
from lmworks.tokenizer.bpe import BPETokenizer
from lmworks.tokenizer.byte import ByteTokenizer
from lmworks.tokenizer.char import CharTokenizer
from lmworks.tokenizer.formats import load, load_tiktoken, save
from lmworks.tokenizer.growing import GrowingText
from lmworks.tokenizer.offsets import Encoding
from lmworks.tokenizer.prepare import Padding, Prepared, Truncation
from lmworks.tokenizer.stream import StreamDecoder
from lmworks.tokenizer.template import Template, TemplateItem
from lmworks.tokenizer.train import train_bpe, train_bpe_from_iterator
from lmworks.tokenizer.word import WordTokenizer

__all__ = [
    "BPETokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "Encoding",
    "GrowingText",
    "Padding",
    "Prepared",
    "StreamDecoder",
    "Template",
    "TemplateItem",
    "Tokenizer",
    "Truncation",
    "WordTokenizer",
    "load",
    "load_tiktoken",
    "save",
    "train_bpe",
    "train_bpe_from_iterator",
]
