"""What every other package may use: configuration, errors, atomic files, machine facts.

Loads no torch.
"""
