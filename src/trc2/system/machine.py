"""The cores and the memory that a machine offers a process. Works on Linux, macOS and Windows."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import signal
import sys
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
# From glibc's malloc.h. With these values the heap is never given back and takes buffers of any size.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MALLOC_SETTINGS = ((M_MMAP_THRESHOLD, 2**31 - 1), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26))


def available_cores() -> int:
    """Those this process may use, which in a container can be fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        limit, period = QUOTA.read_text(encoding="ascii").split()
        return cores if limit == "max" else max(1, min(cores, math.ceil(int(limit) / int(period))))
    except (OSError, ValueError):  # no Linux, or no container
        return cores


def busy_cores() -> float:
    """How many cores' worth of work the machine has had over the last minute."""
    import psutil

    return float(psutil.getloadavg()[0])


def crowding(threads: int, busy: float, cores: int) -> str | None:
    """Advice where more threads would run than there are cores: they wait for each other at every product.

    Two runs of two threads each on two cores are eight times slower than two of one thread.
    """
    free = max(1, int(cores - busy + 0.5))
    if threads <= free or threads == 1:
        return None
    return (
        f"Other programs keep about {busy:.1f} of {cores} cores busy and torch would use {threads} threads: with "
        f"output.threads={free} this may be several times faster."
    )


def peak_memory_bytes() -> int:
    """The most memory this process ever held."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory. False without glibc, or where the environment has its own settings.

    glibc returns large buffers to the system and takes them again in the next step, page by page, each cleared by the
    kernel. A training step uses the same buffers every time, so keeping them saves up to 6 % of its time on a CPU
    (docs/speed.md). No number changes.
    """
    is_decided = any(name.startswith("MALLOC_") for name in os.environ) or "LD_PRELOAD" in os.environ
    if is_decided or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(setting, value) == 1 for setting, value in MALLOC_SETTINGS)


def end_with_parent() -> None:
    """In a child: when its parent is killed, save and stop as if asked to. Only Linux can promise that.

    A shell without job control starts `command &` with SIGINT ignored, and its children inherit that. They are asked to
    stop by this signal, so it gets its meaning back.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
