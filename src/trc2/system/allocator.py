"""Memory that is freed stays with the process.

glibc gives large buffers back to the system at once and takes them again in the next step, page by page, each page
cleared by the kernel. A training step frees and takes the same buffers every time, so keeping them saves up to 6 %
of its time on a CPU (docs/speed.md). No number changes.
"""

from __future__ import annotations

import ctypes
import os
import platform

# From glibc's malloc.h: the top of the heap is never given back, and nothing is too large for the heap.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGEST = 2**31 - 1
PAD = 2**26


def keep_freed_memory() -> bool:
    """Ask glibc to keep what is freed; False without glibc, or where the environment decided already."""
    decided = any(name.startswith("MALLOC_") for name in os.environ) or "LD_PRELOAD" in os.environ
    if decided or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((M_MMAP_THRESHOLD, LARGEST), (M_TRIM_THRESHOLD, LARGEST), (M_TOP_PAD, PAD))
    return all(mallopt(setting, value) == 1 for setting, value in settings)
