"""Scratch buffers that live on between calls.

A fresh large tensor costs more than the arithmetic on it: each first touch of a page is a fault
(64 MB fresh: 5.8 times the reused one). Kernels borrow their scratch here instead. One buffer per
dtype and thread, as large as the largest request so far.
"""

import threading

import torch
from torch import Tensor


class _Buffers(threading.local):
    """Flat CPU buffers of this thread by dtype."""

    def __init__(self) -> None:
        self.by_dtype: dict[torch.dtype, Tensor] = {}


_buffers = _Buffers()


def borrow(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A contiguous CPU tensor with undefined values, valid until the next `borrow` of its dtype."""
    numel = 1
    for size in shape:
        numel *= size
    buffer = _buffers.by_dtype.get(dtype)
    if buffer is None or buffer.numel() < numel:
        _buffers.by_dtype.pop(dtype, None)
        buffer = None  # free the old one before the new one is taken
        # A tensor made in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            buffer = torch.empty(numel, dtype=dtype)
        _buffers.by_dtype[dtype] = buffer
    return buffer[:numel].view(shape)


def release() -> None:
    """Give this thread's buffers back to the allocator."""
    _buffers.by_dtype.clear()
