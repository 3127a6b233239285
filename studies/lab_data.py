"""Make the folder that the lab recipes call DATA from the public datasets.

    python -m studies.lab_data DATA

Needs `datasets` (the extra `data`) and a network, about 20 MB of download. `--hub FOLDER` reads copies of the dataset
repositories below FOLDER instead, e.g. FOLDER/allenai/c4. docs/lab-data.md says how the result differs from ours.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from trc2.errors import UserError
from trc2.system.files import write_atomically

Row = dict[str, Any]
C4, WIKITEXT, GSM8K = ("allenai/c4", "en"), ("Salesforce/wikitext", "wikitext-2-raw-v1"), ("openai/gsm8k", "main")
C4_DOCUMENTS = 2500
GSM8K_VALIDATION = 500


def rows_of(source: tuple[str, str], split: str, hub: Path | None) -> Iterator[Row]:
    """The rows of a split in the order of the dataset, without downloading more than is read."""
    from datasets import load_dataset

    name, subset = source
    yield from load_dataset(str(hub / name) if hub else name, subset, split=split, streaming=True)


def split_c4(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Of 25 documents in a row 21 are train text, 2 validation and 2 test text: 2,100, 200 and 200."""
    parts: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for number, row in enumerate(rows):
        place = number % 25
        parts["train" if place < 21 else "validation" if place < 23 else "test"].append({"text": row["text"]})
    return parts


def split_gsm8k(rows: Sequence[Row], count: int) -> dict[str, list[Row]]:
    """Take the `count` questions with the smallest hash out of the train rows as validation rows."""
    chosen = sorted(range(len(rows)), key=lambda n: hashlib.sha256(rows[n]["question"].encode()).hexdigest())[:count]
    taken = set(chosen)
    return {
        "train": [row for number, row in enumerate(rows) if number not in taken],
        "validation": [row for number, row in enumerate(rows) if number in taken],
    }


def make(target: Path, hub: Path | None = None) -> dict[str, dict[str, int]]:
    """Write all files and return how many rows each has."""
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target} is not empty: name a folder that does not exist yet.")
    questions = list(rows_of(GSM8K, "train", hub))
    data = {
        "c4": split_c4(islice(rows_of(C4, "train", hub), C4_DOCUMENTS)),
        "wikitext": {split: list(rows_of(WIKITEXT, split, hub)) for split in ("train", "validation", "test")},
        "gsm8k": {
            **split_gsm8k(questions, min(GSM8K_VALIDATION, len(questions) // 2)),
            "test": list(rows_of(GSM8K, "test", hub)),
        },
    }
    for name, parts in data.items():
        (target / name).mkdir(parents=True, exist_ok=True)
        for split, rows in parts.items():
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            write_atomically(target / name / f"{split}.jsonl", text.encode())
    return {name: {split: len(rows) for split, rows in parts.items()} for name, parts in data.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, metavar="DATA", help="the folder to make")
    parser.add_argument("--hub", type=Path, help="a folder with copies of the dataset repositories")
    given = parser.parse_args(arguments)
    try:
        counts = make(given.target, given.hub)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    for name, parts in counts.items():
        print(f"{name}: " + ", ".join(f"{count:,} {split}" for split, count in parts.items()))
    print(f"Begin with `trc2 data prepare lab_trc2 stream.data_root={given.target}`.")


if __name__ == "__main__":
    main()
