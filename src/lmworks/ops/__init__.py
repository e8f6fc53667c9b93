"""Tensor operators: one folder each, a plain PyTorch reference beside the fast kernels.

    from lmworks.ops.linear_cross_entropy import linear_cross_entropy
    from lmworks.ops.adamw import adamw_step_
    from lmworks.ops.global_norm import global_norm

`dispatch` holds the table that picks a kernel; docs/ops.md shows how to add an operator.
"""
