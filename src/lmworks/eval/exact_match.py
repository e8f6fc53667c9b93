"""Texts that are compared word for word, after what does not matter has been made equal.

The steps are those of SQuAD's evaluation script (Rajpurkar et al. 2016, arXiv 1606.05250).
"""

import re
import string
import unicodedata
from collections.abc import Iterable

from lmworks.eval.task_file import Normalization

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.IGNORECASE)


def matches(text: str, answers: Iterable[str], normalize: Iterable[Normalization]) -> bool:
    """Whether `text` is one of `answers` after normalization of both."""
    steps = frozenset(normalize)
    return normalized(text, steps) in {normalized(answer, steps) for answer in answers}


def normalized(text: str, steps: Iterable[Normalization]) -> str:
    """`text` without what `steps` name.

    case: letters are small. punctuation: characters that Unicode calls so, and ASCII's symbols,
    are dropped. articles: the words a, an and the are dropped. whitespace: none at the ends, one
    blank for any run of it between words. The order is this one, whatever that of `steps`.
    """
    steps = frozenset(steps)
    if "case" in steps:
        text = text.casefold()
    if "punctuation" in steps:
        text = "".join(c for c in text if not _is_punctuation(c))
    if "articles" in steps:
        text = _ARTICLES.sub(" ", text)
    if "whitespace" in steps:
        text = " ".join(text.split())
    return text


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")
