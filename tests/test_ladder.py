"""Imports point one way: a rung may use those below it, never those above."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "trc2"

# From the ground up. Packages of one rung may not import each other, except within themselves.
LADDER = [
    {"errors"},
    {"system", "stats"},
    {"config", "distributed"},
    {"ops"},
    {"nn"},
    {"model", "replay", "recall"},
    {"backbones"},
    {"stream", "metrics", "reference"},
    {"strategies", "generate"},
    {"runs"},
    {"evaluation", "teaching"},
    {"training"},
    {"continuing", "costs"},
    {"setup", "sweep"},
    {"report"},
    {"hf"},
    {"versions"},
    {"serving"},
    {"api"},
    {"verify"},
    {"cli"},
    {"__main__"},
]


def rung(module: str) -> int:
    for height, names in enumerate(LADDER):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return height
    raise AssertionError(f"trc2.{module} is on no rung of the ladder: add it to LADDER")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trc2."):
            found.add(node.module.removeprefix("trc2."))
        elif isinstance(node, ast.Import):
            found |= {name.name.removeprefix("trc2.") for name in node.names if name.name.startswith("trc2.")}
    return found


def test_no_module_imports_from_above() -> None:
    checked = 0
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if module == "__init__":
            continue  # the public face may import everything
        package = module.split(".")[0]
        for used in imports(path):
            checked += 1
            same_package = used.split(".")[0] == package
            assert same_package or rung(used) < rung(module), f"trc2.{module} imports trc2.{used}"
    assert checked > 50


def test_the_core_knows_no_file_clock_or_logger() -> None:
    forbidden = {"pathlib", "os", "io", "time", "datetime", "logging", "json", "random", "open"}
    for package in ("ops", "nn", "model", "metrics", "stats"):
        for path in (SOURCE / package).glob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = {alias.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
            names |= {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
            names |= {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
            assert not names & forbidden, f"{path.name} uses {names & forbidden}"


def test_statistics_know_nothing_of_the_project_and_alone_know_scipy() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.parent.name == "stats":
            assert all(used == "errors" or used.startswith("stats.") for used in imports(path)), path.name
        else:
            assert "import scipy" not in text, path.name
            assert "from scipy" not in text, path.name


@pytest.mark.slow
def test_importing_the_package_does_not_wait_for_scipy() -> None:
    subprocess.run([sys.executable, "-c", "import sys, trc2; sys.exit('scipy' in sys.modules)"], check=True)
