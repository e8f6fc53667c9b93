"""What stands before the first token of a text, so that it can be predicted as well.

Three cases, the first that holds:

1. The tokenizer puts tokens before every text (`add_bos_token` of Llama and Gemma). Such a model
   has never read a text without them and may fail on one, so every window begins with them.
2. The model has a beginning-of-text token: it stands before the text once.
3. It has an end-of-text token, which stands between documents in training: the same.

So do lm-evaluation-harness (`HFLM.prefix_token_id`) for 2 and 3 and llama.cpp's perplexity for 1.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from lmworks.serve.generate import begin_ids
from lmworks.tokenizer.base import Tokenizer


class Start(NamedTuple):
    """Tokens before a text."""

    ids: tuple[int, ...] = ()
    """Empty: the first token of the text cannot be predicted."""
    is_repeated: bool = False
    """Whether a window in the middle of the text begins with them, too."""


def start_of_text(
    tokenizer: Tokenizer, special_ids: Mapping[str, int] = MappingProxyType({})
) -> Start:
    """Of a tokenizer, and of the special tokens that a model's files name (`Run.special_ids`)."""
    if ids := begin_ids(tokenizer):
        return Start(tuple(ids), is_repeated=True)
    for token_id in (special_ids.get("bos"), tokenizer.eot_id, special_ids.get("eos")):
        if token_id is not None:
            return Start((token_id,))
    return Start()
