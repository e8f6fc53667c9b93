"""Whole models: the architecture config (no torch), the decoder, saving and loading."""
