"""lmworks: language models from raw text to a served model, on the hardware at hand.

Importing the package loads nothing heavy; import the part you need, for example
`from lmworks import tokenizer`.
"""

__version__ = "0.1.0"
