"""GGUF files, as llama.cpp reads and writes them: container, number formats, architectures."""
