"""Layers: norms, positions, attention, MLPs. `nn.config` needs no torch."""
