"""Measuring against peers: child processes that take turns, spreads, result files. No torch."""
