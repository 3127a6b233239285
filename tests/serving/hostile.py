"""Requests that schemathesis makes from /openapi.json, among them many that are wrong: none may get the status 500.

`python -m tests.serving.hostile FOLDER --out FILE` makes more than 10,000 requests. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.serving.conftest import save_words_model
from trc2.runs.environment import git_revision
from trc2.serving.server import Limits, Server, ServerSettings
from trc2.versions.registry import Versions


def prove(folder: Path, model: Path, examples: int) -> dict[str, Any]:
    """Ask, with so many examples for each operation at most, and return the figures. A status of 500 is an error."""
    versions = Versions(folder / "versions")
    versions.promote(Path(shutil.copytree(model, folder / "first")), first=True)
    limits, begun = Limits(per_minute=10**6), time.time()
    statuses: dict[str, Counter[int]] = {}
    with Server(ServerSettings(versions.folder, port=0, data=folder / "data", limits=limits)) as server:
        for found in schemathesis.openapi.from_url(f"{server.url}/openapi.json").get_all_operations():
            operation = found.ok()
            ask(operation, examples, statuses.setdefault(operation.label, Counter()))
    total = sum(statuses.values(), Counter[int]())
    return {
        "commit": git_revision(), "schemathesis": schemathesis.__version__, "examples": examples,
        "seconds": round(time.time() - begun), "requests": total.total(), "statuses": as_json(total),
        "operations": {name: as_json(counts) for name, counts in statuses.items()},
    }  # fmt: skip


def ask(operation: Any, examples: int, statuses: Counter[int]) -> None:
    """Make requests of one operation. 503 is the answer where a version or the database cannot be used now."""
    chosen = settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )

    @chosen
    @given(operation.as_strategy())
    def one(case: Any) -> None:
        status = case.call().status_code
        statuses[status] += 1
        assert status < 500 or status == 503, (case, status)

    run: Callable[[], None] = one
    run()


def as_json(counts: Counter[int]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(counts.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--examples", type=int, default=800, help="requests for each operation at most")
    parser.add_argument("--out", type=Path, help="also write the figures into this file")
    asked = parser.parse_args()
    figures = json.dumps(prove(asked.folder, save_words_model(asked.folder / "words"), asked.examples), indent=1)
    print(figures)
    if asked.out is not None:
        asked.out.write_text(figures + "\n")


if __name__ == "__main__":
    main()
