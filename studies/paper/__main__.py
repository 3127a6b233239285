"""python -m studies.paper FOLDER… [--out OUT]: the paper's claims, tables and figures from the runs of a folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trc2.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.paper", description=__doc__)
    parser.add_argument("folders", nargs="+", help="run folders, or folders that hold runs")
    parser.add_argument("--out", type=Path, help="where everything goes; by default FOLDER/paper")
    asked = parser.parse_args(arguments)
    from studies.paper.study import check_folders, write_study  # matplotlib takes a while to import

    try:
        folders = check_folders(asked.folders)
        out = asked.out or folders[0] / "paper"
        written = write_study(folders, out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for title, reason in written.left_out.items():
        print(f"missing: {title}: {reason}")
    print(f"{len(written.written)} files in {written.seconds:.0f} s: {out / 'README.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
