"""Makes the C allocator keep and reuse large blocks, in huge pages.

A training step allocates and frees the same large tensors again and again. glibc returns each of
them to the kernel, which hands out fresh pages the next time and must clear every one: on CPUs with
fast bf16 matrix units that costs as much as all matrix products of a small model. Two settings of
the running process remove it, with no library to preload:

  1. `mallopt`: no block of its own mapping per large allocation, never shrink the heap.
  2. the heap is reserved in advance (address space only) and marked for transparent huge pages,
     so that it needs a five-hundredth of the address translations.

Memory that a step has used stays with the process until it ends. Only Linux with glibc has these
calls; elsewhere nothing changes and the note says so.
"""

import ctypes
import os
import resource
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc malloc.h
_MADV_HUGEPAGE = 14  # linux/mman.h
_NEVER = -1  # mallopt(3): disables trimming; the largest int would still trim at 2 GiB
_HUGE_PAGE_BYTES = 2 << 20
_MAX_RESERVE_BYTES = 16 << 30
_THP_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def reuse_memory() -> str:
    """Switch the process's allocator to reuse; returns one line that says what was done.

    Call once, before the first large allocation: pages that are already in use stay small.
    """
    libc = _glibc()
    if libc is None:
        return "allocator unchanged: memory reuse needs Linux with glibc"
    if "LD_PRELOAD" in os.environ:
        return f"allocator unchanged: LD_PRELOAD={os.environ['LD_PRELOAD']} is in charge"
    if not (libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)):
        return "allocator unchanged: mallopt refused"
    note = "allocator keeps and reuses freed memory"
    return note + (", in huge pages" if _reserve_huge_pages(libc) else "")


def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.gnu_get_libc_version  # noqa: B018  (musl has no such function)
    except (OSError, AttributeError):
        return None
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _reserve_huge_pages(libc: ctypes.CDLL) -> bool:
    """Grow the heap once without touching it, and ask for huge pages there."""
    if not _THP_SETTING.exists() or "[never]" in _THP_SETTING.read_text():
        return False
    block = libc.malloc(_reserve_bytes())
    if block is None:
        return False
    libc.free(block)  # the heap keeps the address space: trimming is off
    return any(
        libc.madvise(start, end - start, _MADV_HUGEPAGE) == 0 for start, end in _heap_ranges()
    )


def _reserve_bytes() -> int:
    """Half of the physical memory, within any limit on address space."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        total = min(total, limit // 4)
    return min(total // 2, _MAX_RESERVE_BYTES)


def _heap_ranges() -> list[tuple[int, int]]:
    """Address ranges of the heap, cut to whole huge pages."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[heap]"):
            start, end = (int(part, 16) for part in line.split(maxsplit=1)[0].split("-"))
            start = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
            end = end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
            if end > start:
                ranges.append((start, end))
    return ranges
