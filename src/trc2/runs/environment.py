"""What a run was made with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trc2.system.torchrun import world_of_process

PLACE = re.compile(r"(?<![\w.~])~?/(?:[^/\s=,\]]+/)+")  # the folders of an absolute path, which may name a user
PACKAGES = (
    "trc2",
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "sacrebleu",
    "rouge-score",
    "datasets",
    "transformers",
)


def describe_environment() -> dict[str, Any]:
    """Versions, machine and source revision; no user or host names."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "schema": 1,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": world_of_process(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "versions": versions,
        "revision": _git_revision(),
        "command": [Path(sys.argv[0]).name, *(PLACE.sub("…/", argument) for argument in sys.argv[1:])],
    }


def changes_since(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """What a run is made with now and was not before, such as {"torch": "2.12.0 → 2.13.0"}."""
    before, after = ({"python": made.get("python"), **made.get("versions", {})} for made in (earlier, now))
    return {name: f"{before.get(name)} → {after.get(name)}" for name in {**before, **after}
            if before.get(name) != after.get(name)}  # fmt: skip


def _git_revision() -> str | None:
    """The source's commit, with a plus sign if it was changed since."""
    here = Path(__file__).parent
    try:
        run = lambda *arguments: subprocess.run(  # noqa: E731
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True, timeout=5
        ).stdout.strip()
        return run("rev-parse", "HEAD") + ("+" if run("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return None
