from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trc2.system import machine
from trc2.system.machine import available_cores, busy_cores, crowding, peak_memory_bytes


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
