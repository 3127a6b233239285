"""A Hugging Face model and a new domain: what teaching, training and both do to new and to old text.

    python -m studies.taught --data DATA --out results/taught

A small Llama is trained on C4 first, because no pretrained model can be downloaded here. Then the same documents of a
new domain are taught (`trc2 teach`), trained on (`trc2 continue` with 30 % replay of C4), or both. Scored is text that
was neither taught nor trained on: other documents of the domain, and other documents of C4. The settings below were
fixed before the first result.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import trc2
from trc2.stream.tokenizer import train_bpe
from trc2.system.files import write_atomically

VOCABULARY = 4096
OLD_STEPS, NEW_STEPS = 1200, 150
DOMAINS = {"gsm8k": 500, "wikitext": 60}  # documents that are taught
OLD_SCORED, NEW_SCORED = 100, 60
SEEDS = (0, 1, 2)
SIZES = ["train.batch_size=8", "train.sequence_length=128", "eval.max_batches=4", "output.threads=1",
         "train.learning_rate=0.002"]  # fmt: skip


def texts(path: Path, count: int) -> list[str]:
    """The first documents of a file of the lab's data."""
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [row["text"] if "text" in row else f"{row['question']}\n{row['answer']}" for row in rows]


def old_model(data: Path, home: Path) -> Path:
    """A Llama of three million weights that knows C4, as a folder of transformers."""
    known = texts(data / "c4" / "train.jsonl", 2000)
    sample = [*known[:600], *texts(data / "gsm8k" / "train.jsonl", 600), *texts(data / "wikitext" / "train.jsonl", 60)]
    tokenizer = train_bpe(sample, VOCABULARY)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6,
        max_position_embeddings=256, eos_token_id=tokenizer.end_of_text, bos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    random = home / "random"
    transformers.LlamaForCausalLM(config).save_pretrained(random)
    (random / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    run = trc2.continue_from(
        random, {"c4": known}, steps=OLD_STEPS, folder=home / "old_run", overrides=[*SIZES, "model.replay=false"],
        quiet=True,
    )  # fmt: skip
    return run.export(home / "old", anyway=True)


def scores(model: Path, new: list[str], old: list[str]) -> dict[str, float]:
    """Loss per token of held-out text of the new domain and of C4."""
    saved = trc2.load_model(model)
    return {"new": saved.evaluate(new)["loss"], "old": saved.evaluate(old)["loss"]}


def compare(old: Path, domain: str, data: Path, home: Path) -> dict[str, Any]:
    """Losses of one domain before, and after each way to learn it."""
    taught = texts(data / domain / "train.jsonl", DOMAINS[domain])
    new = texts(data / domain / "validation.jsonl", NEW_SCORED)
    kept, known = texts(data / "c4" / "train.jsonl", 100), texts(data / "c4" / "validation.jsonl", OLD_SCORED)
    home.mkdir(parents=True)
    result: dict[str, Any] = {"before": scores(old, new, known)}
    by_teaching = Path(shutil.copytree(old, home / "taught"))
    begun = time.perf_counter()
    change = trc2.load_model(by_teaching).teach(taught, source=domain)
    result["teaching_seconds"] = round(time.perf_counter() - begun, 2)
    result["documents"] = len(change.documents)
    result["teach"] = scores(by_teaching, new, known)
    result["continue"], result["continue and teach"] = [], []
    for seed in SEEDS:
        child = trc2.continue_from(
            old, {domain: taught}, keep={"c4": kept}, steps=NEW_STEPS, folder=home / f"run{seed}", replay_share=0.3,
            overrides=[*SIZES, f"train.seed={seed}"], quiet=True,
        )  # fmt: skip
        trained = child.export(home / f"trained{seed}", anyway=True)
        result["continue"].append(scores(trained, new, known))
        trc2.load_model(trained).teach(taught, source=domain)
        result["continue and teach"].append(scores(trained, new, known))
    return result


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = ["| domain | way | perplexity of the domain | perplexity of C4 |", "|:---|:---|---:|---:|"]
    for domain, result in results.items():
        for way in ("before", "teach", "continue", "continue and teach"):
            rows = result[way] if isinstance(result[way], list) else [result[way]]
            cells = []
            for which in ("new", "old"):
                values = [math.exp(row[which]) for row in rows]
                spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
                cells.append(f"{sum(values) / len(values):.1f}{spread}")
            lines.append(f"| {domain} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.taught", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the lab's data")
    parser.add_argument("--out", type=Path, required=True, help="a folder for taught.json and README.md")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        old = old_model(asked.data, home)
        results = {domain: compare(old, domain, asked.data, home / domain) for domain in DOMAINS}
    asked.out.mkdir(parents=True, exist_ok=True)
    write_atomically(asked.out / "taught.json", json.dumps({"schema": 1, "domains": results}, indent=1).encode())
    write_atomically(asked.out / "README.md", ("# Taught, trained, or both\n\n" + table(results)).encode())
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
