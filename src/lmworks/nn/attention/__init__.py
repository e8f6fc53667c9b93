"""Attention layers, their masks and the key-value cache."""
