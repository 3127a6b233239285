"""The wheel works where only the wheel is installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from trc2 import __version__

ROOT = Path(__file__).parents[1]


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(folder: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_it(python: Path, tmp_path: Path) -> None:
    trc2 = python.parent / "trc2"
    assert run(trc2, "--version").strip() == f"trc2 {__version__}"
    assert "8,520,244 parameters." in run(trc2, "budget", "paper_compact")
    where = run(python, "-c", "import trc2; print(trc2.__file__)")
    assert str(tmp_path) in where


def test_the_wheel_runs_a_recipe_in_a_new_environment(tmp_path: Path) -> None:
    """Dependencies are borrowed from this environment. The slow test below installs them too."""
    wheel = build_wheel(tmp_path / "dist")
    held = set(zipfile.ZipFile(wheel).namelist())
    kinds = {".yaml", ".html", ".css", ".js", ".svg"}
    parts = [path for path in (ROOT / "src" / "trc2").rglob("*.*") if path.suffix in kinds]
    assert {path.suffix for path in parts} == kinds
    assert {path.relative_to(ROOT / "src").as_posix() for path in parts} <= held
    venv.create(tmp_path / "env", with_pip=False)  # a pip of its own takes longer than all the rest
    python = tmp_path / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    # Only the folder is added: the editable install's own .pth in it is not followed.
    (Path(site) / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"])
    try_it(python, tmp_path)


@pytest.mark.slow
def test_the_wheel_installs_with_its_declared_dependencies(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "dist")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    try_it(python, tmp_path)
