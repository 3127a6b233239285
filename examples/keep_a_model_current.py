"""Keep a model you already have current: a Llama folder, three folders of text, a report, and a Llama folder again.

    python examples/keep_a_model_current.py MODEL DATA OUT

MODEL is any causal language model of transformers; below DATA lie the tasks news, law and code, each with train.jsonl
(rows with "text") and, better, validation.jsonl and test.jsonl. Everything is written below OUT.
"""

import sys
from pathlib import Path

from rich.console import Console

from trc2 import RunConfig, __version__
from trc2.config import TaskConfig
from trc2.export import export_run
from trc2.report.summary import write_summary
from trc2.training.gate import judge
from trc2.training.resume import continue_run
from trc2.training.start import start_run

model, data, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 200
console = Console()

# 1. Two tasks, one after the other. A tenth of every step's tokens is replayed, more if old tasks begin to suffer.
config = RunConfig(
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
run = start_run(config, console)

# 2. Later a third one comes in. The run goes on from before its anneal; the parent is not touched.
task = TaskConfig(name="code", folder=str((data / "code").resolve()), steps=steps)
child = continue_run(run, out / "run+code", task, console)

# 3. Was it worth it? Per task, on text nobody trained on, with intervals.
for found in judge(run, child, 0.05, print).tasks:
    rise = found.rise
    print(f"{found.task}: perplexity {rise.value:+.1%} ({rise.low:+.1%} … {rise.high:+.1%}), {found.word} 5 %")
print(*write_summary(child), sep="\n")

# 4. A folder of the same kind as MODEL, for anyone who has transformers.
print(*export_run(child, out / "model", __version__), sep="\n")
