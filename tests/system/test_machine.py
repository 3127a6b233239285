from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from trc2.system import machine
from trc2.system.machine import available_cores, busy_cores, crowding, keep_freed_memory, peak_memory_bytes


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", None), ("100000 100000", 1), ("50000 100000", 1), ("nonsense", None)]
)
def test_a_container_has_no_more_cores_than_its_quota(
    quota: str, cores: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "cpu.max")
    assert available_cores() == (cores or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("threads", "busy", "cores", "advice"),
    [
        (2, 0.1, 2, None),
        (2, 1.9, 2, "output.threads=1 "),
        (1, 5.0, 2, None),  # fewer there are not
        (16, 9.7, 16, "output.threads=6 "),
        (8, 0.0, 4, "output.threads=4 "),
    ],
)
def test_advice_is_given_where_threads_would_wait_for_each_other(
    threads: int, busy: float, cores: int, advice: str | None
) -> None:
    said = crowding(threads, busy, cores)
    assert said is None if advice is None else said is not None and advice in said


def test_load_and_memory_are_numbers() -> None:
    assert busy_cores() >= 0
    assert 10e6 < peak_memory_bytes() < 100e9


IMPORT_ALL = """
import importlib, pkgutil, sys
import datasets, filelock, matplotlib.pyplot, psutil, torch, transformers, typer  # they know Windows themselves
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
import trc2
for module in pkgutil.walk_packages(trc2.__path__, "trc2."):
    if not module.name.endswith(("__main__", "trc2.evaluation.lm_eval")):  # the second needs an extra
        importlib.import_module(module.name)
"""


def test_every_module_imports_where_there_is_only_what_windows_has() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PROGRAM = """
import resource, sys
from trc2.system.machine import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
def work():
    for size in (3, 40, 80):
        b"x" * (size * 2**20)
for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str, **environment: str) -> tuple[str, int]:
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # the package that is tested, and nothing else of ours
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_with_freed_memory_kept_a_second_round_takes_no_new_pages_unless_the_environment_decides() -> None:
    kept, faults = page_faults("keep")
    assert kept == "True"
    assert page_faults("leave")[1] > 20_000, "without the setting every round takes them again"
    assert faults < 2_000
    assert page_faults("keep", MALLOC_ARENA_MAX="2")[0] == "False"


def test_without_glibc_freed_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert keep_freed_memory() is False


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_child_of_a_command_in_the_background_can_still_be_asked_to_stop() -> None:
    """A shell without job control starts it with SIGINT ignored, and all its children inherit that."""
    program = (
        "import signal; from trc2.system.machine import end_with_parent; end_with_parent(); "
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", program]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "True\n"
