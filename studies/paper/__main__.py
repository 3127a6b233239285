"""python -m studies.paper results/lab: the ledger of the paper's claims, into the same folder."""

from __future__ import annotations

import sys
from pathlib import Path

from studies.paper import write_claims
from trc2.report.evidence import Evidence


def main(folders: list[str]) -> None:
    for path in write_claims(Evidence.of([Path(folder) for folder in folders]), Path(folders[0])):
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
