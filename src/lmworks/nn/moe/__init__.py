"""Mixture of experts: `layer` is the module, a file per kind of router, `balance` the losses."""
