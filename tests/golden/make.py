"""Makes the golden run. Only for a new schema: the point of the old one is that later versions can read it.

python tests/golden/make.py      (from the project's root)
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from trc2.config import RunConfig
from trc2.training.setup import start_run
from trc2.verify.kill_tests import WORDS, small_run, write_small_data

HERE = Path("tests/golden")


def main() -> None:
    write_small_data(HERE / "data", WORDS)
    shutil.rmtree(HERE / "run", ignore_errors=True)
    values = small_run(HERE).model_dump(mode="json")
    values["stream"] |= {"data_root": str(HERE / "data"), "cache": "~/.cache/trc2"}
    values["output"] |= {"folder": str(HERE / "run"), "keep_checkpoints": 1, "checkpoint_every": 100}
    start_run(RunConfig(**values), Console())
    for name in ("lock", "lock.owner", "environment.json"):
        (HERE / "run" / name).unlink()
    for path in sorted((HERE / "run" / "checkpoints").iterdir())[:-2]:
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
