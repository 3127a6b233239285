"""Your own stream: three sources of text, one after the other, and how much of them the model forgets.

    python examples/own_stream.py OUT [STEPS]

Everything is written below OUT. Put your own text in the place of `write_samples`.
"""

import json
import random
import sys
from pathlib import Path

import trc2

out, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60


def write_samples(folder: Path) -> None:
    """A folder of plain text and a file of questions with answers, both made up."""
    rng = random.Random(0)
    who, what = ["the gardener", "a neighbour", "my sister"], ["waters the roses", "paints the gate", "mends the roof"]
    (folder / "diary").mkdir(parents=True, exist_ok=True)
    for month in range(12):
        lines = [f"On day {day} {rng.choice(who)} {rng.choice(what)}." for day in range(1, 29)]
        (folder / "diary" / f"month{month:02}.txt").write_text("\n\n".join(lines))
    rows = [
        {"question": f"Which number comes after {n}?", "answer": str(n + 1), "source": "made up"} for n in range(400)
    ]
    (folder / "questions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


# 1. The stream: a folder, a file with fields of its own, a corpus that comes with the package.
write_samples(out / "data")
tasks = [
    {"name": "diary", "folder": "diary", "steps": steps},
    {"name": "questions", "folder": "questions.jsonl", "format": "{question} {answer}", "steps": steps},
    {"name": "sums", "builtin": "arithmetic", "max_train_bytes": 200_000, "max_eval_bytes": 50_000, "steps": steps},
]

# 2. A run: a small TRC². Settings that are not named here keep their defaults.
config = trc2.RunConfig(
    model={"d_model": 32, "num_columns": 3, "num_heads": 4, "num_kv_heads": 2, "num_experts": 2, "d_ff": 64,
           "vocab_size": 512, "max_positions": 64, "memory_slots": 256, "memory_key_dim": 16,
           "replay_chunk_length": 32},
    stream={"data_root": out / "data", "cache": out / "cache", "tokenizer": {"vocab_size": 512}, "tasks": tasks},
    train={"sequence_length": 64, "batch_size": 8, "learning_rate": 3e-3, "warmup_steps": 5},
    control={"every_steps": max(1, steps // 4)},
    eval={"every_steps": max(1, steps // 3), "max_batches": 2, "text_sequences": 0},
    output={"folder": out / "run"},
)  # fmt: skip
run = trc2.train(config)

# 3. Forgetting. Scores after each task's own training and at the end, from the run's metrics log.
lost = run.forgetting().tasks
for name, score in run.scores().items():
    forgotten = lost.get(name, 0.0)  # the last task was trained last
    print(f"{name}: perplexity {score.learned:.1f} after its training, {score.kept:.1f} at the end,", end=" ")
    print(f"forgotten {forgotten:.2f} nats")
print(run.folder / "summary.md")
