"""What a run was made with: versions, machine, source revision, and the pretrained weights it began with."""

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

from trc2.config.adapters import is_adapter, read_adapter
from trc2.config.pretrained import locate, weight_files
from trc2.stream.cache import expanded, known_checksums
from trc2.system.files import reading
from trc2.system.torchrun import world_of_process

PLACE = re.compile(r"(?<![\w.~])~?/(?:[^/\s=,\]]+/)+")  # the folders of an absolute path, which may name a user
CHECKSUM_LINE = re.compile(r"([0-9a-f]{64})  ([^/\n]+)")
PACKAGES = (
    "trc2", "torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "rouge-score", "datasets", "transformers",
)  # fmt: skip


def describe_environment() -> dict[str, Any]:
    """Versions, machine and source revision. No user or host names."""
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
        "revision": git_revision(),
        "command": [Path(sys.argv[0]).name, *(PLACE.sub("…/", argument) for argument in sys.argv[1:])],
    }


def changes_since(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """The versions that differ between two environments, such as {"torch": "2.12.0 → 2.13.0"}."""
    before, after = ({"python": one.get("python"), **one.get("versions", {})} for one in (earlier, now))
    return {name: f"{before.get(name)} → {after.get(name)}" for name in {**before, **after}
            if before.get(name) != after.get(name)}  # fmt: skip


def git_revision() -> str | None:
    """The source's commit, with a plus sign if the source was changed since."""
    source = str(Path(__file__).parent)

    def git(*arguments: str) -> str:
        command = ["git", "-C", source, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", source) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def weight_checksums(pretrained: str, cache: Path) -> dict[str, str]:
    """The sha256 of every weight file of a model, by file name. Checksums in the cache are not computed again."""
    folder = Path(pretrained).expanduser()
    if is_adapter(folder):
        adapter = read_adapter(folder)
        files = [adapter.weights, *weight_files(adapter.base)]
    else:
        files = weight_files(locate(pretrained, with_weights=True))
    checksums = known_checksums(files, expanded(cache) / "weights")
    return {path.name: checksum for path, checksum in zip(files, checksums, strict=True)}


def checksum_lines(checksums: Mapping[str, str]) -> str:
    """The format that `sha256sum` prints and that `sha256sum -c` compares in the model's folder."""
    return "".join(f"{checksum}  {name}\n" for name, checksum in sorted(checksums.items()))


def read_checksums(path: Path) -> dict[str, str]:
    with reading(path):
        lines = [CHECKSUM_LINE.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(lines):
            raise ValueError("one of its lines is not a checksum with a name")
        return {line[2]: line[1] for line in lines if line is not None}
