"""Keep a model you already have current: a Llama folder, three folders of text, a report, and a Llama folder again.

    python examples/keep_a_model_current.py MODEL DATA OUT

MODEL is any causal language model of transformers. Below DATA lie the tasks news, law and code, each with train.jsonl
(rows with "text") and, better, validation.jsonl and test.jsonl. Everything is written below OUT.
"""

import sys
from pathlib import Path

import trc2

model, data, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 200

# 1. Two tasks, one after the other. A tenth of every step's tokens is replayed, more if old tasks get worse.
config = trc2.RunConfig(
    model={"name": "hf", "pretrained": model, "replay_share": 0.1, "replay_chunk_length": 32},
    stream={
        "data_root": data,
        "cache": out / "cache",
        "tasks": [{"name": name, "folder": name, "steps": steps} for name in ("news", "law")],
    },
    train={"sequence_length": 64, "batch_size": 4, "learning_rate": 1e-4, "schedule": "wsd"},
    control={"every_steps": max(1, steps // 5)},
    eval={"every_steps": max(1, steps // 4), "text_sequences": 0},
    output={"folder": out / "run"},
)
run = trc2.train(config)

# 2. Later a third one comes in. The child continues from before the parent's anneal. The parent is not changed.
child = run.continue_({"code": data / "code"}, steps=steps, folder=out / "run+code", max_forgetting=0.05)

# 3. The acceptance check per task, on held-out text, with intervals. Numbers that are not finite are words in JSON.
for name, found in child.verdict()["tasks"].items():
    rise, low, high = (float(found[key]) for key in ("rise", "low", "high"))
    print(f"{name}: perplexity {rise:+.1%} ({low:+.1%} … {high:+.1%}): {found['verdict']} 5 %")
print(child.folder / "summary.md")

# 4. A folder of the same kind as MODEL, readable by transformers. If the check refused the child, it is the parent's.
best = child if child.verdict()["passed"] else run
print(best.export(out / "model"))
