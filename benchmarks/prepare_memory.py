"""Peak memory while preparing data does not grow with the corpus.

    python benchmarks/prepare_memory.py --sizes 10 100 1000 --out benchmarks/prepare_memory.json

For each size (in MB) it generates a JSON-lines corpus, prepares it in a process of its own with a small trained BPE,
and records that process's peak memory and time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import tempfile
import time
from pathlib import Path

WORDS = [
    f"{a}{b}" for a in ("ka", "lo", "mi", "ne", "ru", "so", "ti", "va") for b in ("bar", "den", "fel", "gon", "hul")
]


def write_corpus(path: Path, megabytes: int) -> None:
    """Random sentences of made-up words, each document numbered so that none is a duplicate."""
    rng = random.Random(0)
    pool = [" ".join(rng.choice(WORDS) for _ in range(300)) for _ in range(500)]
    written, number = 0, 0
    with path.open("w") as file:
        while written < megabytes * 1_000_000:
            line = json.dumps({"text": f"document {number}: {rng.choice(pool)}"}) + "\n"
            file.write(line)
            written += len(line)
            number += 1


def prepare(root: str, answers: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    from trc2.config import StreamConfig
    from trc2.stream.prepare import prepare_stream

    begun = time.monotonic()
    stream = StreamConfig(
        tasks=[{"name": "big", "folder": "big"}], data_root=root, cache=f"{root}/cache",
        tokenizer={"vocab_size": 2048, "max_train_bytes": 2_000_000},
    )  # fmt: skip
    task = prepare_stream(stream).tasks["big"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answers.put((peak, time.monotonic() - begun, task.splits["train"].tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/prepare_memory.json"))
    arguments = parser.parse_args()
    rows = []
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as root:
            (Path(root) / "big").mkdir()
            write_corpus(Path(root) / "big" / "train.jsonl", size)
            context = multiprocessing.get_context("spawn")
            answers = context.Queue()
            process = context.Process(target=prepare, args=(root, answers))
            process.start()
            peak, seconds, tokens = answers.get()
            process.join()
        rows.append({"megabytes": size, "peak_mb": round(peak / 1e6), "seconds": round(seconds, 1), "tokens": tokens})
        print(rows[-1], flush=True)
    command = f"python benchmarks/prepare_memory.py --sizes {' '.join(map(str, arguments.sizes))}"
    arguments.out.write_text(json.dumps({"schema": 1, "command": command, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
