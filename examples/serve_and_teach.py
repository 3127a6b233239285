"""Serve a model, teach it a document while it answers, and ask the version that was accepted.

    python examples/serve_and_teach.py FOLDER [STEPS]

Needs the extra `serve` and the `openai` client.
"""

import json
import random
import sys
import time
from pathlib import Path

from openai import OpenAI

import trc2


def sentences(words: str, count: int = 120) -> list[str]:
    rng = random.Random(words)
    return [f"{number}: {' '.join(rng.choices(words.split(), k=30))}." for number in range(count)]


def main(folder: Path, steps: int) -> None:
    sizes = {"d_model": 32, "num_columns": 2, "d_ff": 32, "num_experts": 4, "memory_slots": 64, "vocab_size": 400}
    first = trc2.train(
        "demo", {"fruit": sentences("apple pear plum fig")}, steps=steps, folder=folder / "run", quiet=True,
        model=sizes, train={"sequence_length": 64, "batch_size": 4},
        stream={"tokenizer": {"vocab_size": 400}, "cache": str(folder / "cache")},
    )  # fmt: skip
    trc2.Versions(folder / "versions").promote(first.folder, first=True)

    with trc2.serve(folder / "versions", data=folder / "data") as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
        print("served:", client.completions.create(model="latest", prompt="apple", max_tokens=5).model)

        rows = "\n".join(json.dumps({"text": text}) for text in sentences("saw axe drill file"))
        file = client.files.create(file=("tools.jsonl", rows.encode()), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(
            model="latest", training_file=file.id, suffix="tools",
            metadata={"max_forgetting": "10", "steps": str(steps)},
        )  # fmt: skip
        while job.status in ("queued", "running"):
            time.sleep(0.5)
            job = client.fine_tuning.jobs.retrieve(job.id)
        print("job:", job.status, job.error or "")

        answer = client.completions.create(model="latest", prompt="saw", max_tokens=5)
        print("served:", answer.system_fingerprint)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60)
