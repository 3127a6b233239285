"""Which weights a run of `model=hf` began with: their checksums, in the form that `sha256sum` writes and checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trc2.config.pretrained import locate, weight_files
from trc2.stream.cache import expanded, known_checksums
from trc2.system.files import reading

LINE = re.compile(r"([0-9a-f]{64})  ([^/\n]+)")


def sums_of(pretrained: str, cache: Path) -> dict[str, str]:
    """The sha256 of every file the weights are read from, by its name; files that were summed before are not read."""
    files = weight_files(locate(pretrained, with_weights=True))
    sums = known_checksums(files, expanded(cache) / "weights")
    return {path.name: checksum for path, checksum in zip(files, sums, strict=True)}


def as_lines(sums: Mapping[str, str]) -> str:
    """What `sha256sum` prints in the model's folder, and `sha256sum -c` compares there."""
    return "".join(f"{checksum}  {name}\n" for name, checksum in sorted(sums.items()))


def read_sums(path: Path) -> dict[str, str]:
    with reading(path):
        found = [LINE.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(found):
            raise ValueError("it has a line that is no checksum and name")
        return {line[2]: line[1] for line in found if line is not None}
