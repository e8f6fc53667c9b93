"""GGUF files, as llama.cpp reads and writes them: container, number formats, architectures.

    loaded = gguf.load("model.gguf")                  # model, tokenizer, chat template
    gguf.save("out.gguf", loaded.model, loaded.tokenizer, tensor_type="q8_0")

container.py opens a file, layout.py and convert.py know its number formats, architectures.py,
metadata.py and rope.py its pairs, names.py and places.py its tensors.
"""

from lmworks.models.gguf.read import LoadedGguf, load, load_config, load_model
from lmworks.models.gguf.save import save

__all__ = ["LoadedGguf", "load", "load_config", "load_model", "save"]
