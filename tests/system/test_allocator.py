"""Freed memory stays with the process: a second pass over the same sizes meets no new pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from trc2.system.allocator import keep_freed_memory

PROGRAM = """
import resource, sys, torch
from trc2.system.allocator import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
def work():
    for size in (3, 40, 80):
        torch.ones(size * 2**18)  # so many megabytes
for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str, **environment: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, env={**environment}
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_a_second_round_takes_no_new_pages() -> None:
    kept, faults = page_faults("keep")
    assert kept == "True"
    assert page_faults("leave")[1] > 20_000, "without the setting every round takes them again"
    assert faults < 2_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_whoever_started_the_process_decides() -> None:
    assert page_faults("keep", MALLOC_ARENA_MAX="2")[0] == "False"


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert keep_freed_memory() is False
