"""A model card from a run folder: what was learnt, in which order, what was forgotten, and what the model is not."""

from __future__ import annotations

import hashlib
from pathlib import Path

from trc2.config.pretrained import HFConfig
from trc2.report.finished import FinishedRun
from trc2.report.markdown import code, markdown
from trc2.report.summary import boundary_table, forgetting_caption, forgetting_table, gate_lines
from trc2.runs.first_weights import as_lines
from trc2.runs.folder import RunFolder


def model_card(
    run: FinishedRun, num_parameters: int, num_events: int, step: int, version: str, refusal: str | None = None
) -> str:
    """README.md of an exported model, in the form the Hugging Face hub reads; `refusal` is why it was not accepted."""
    title = f"{run.config.model.name} · {markdown(run.name)}"
    parts = [
        _front_matter(run),
        f"# {title}",
        _origin(run, num_parameters, num_events, step, version),
        "## What it learned, in this order",
        _tasks(run),
        "## What it kept",
        "Validation perplexity per token at task boundaries (bold: just after its own training):",
        boundary_table(run),
        forgetting_caption(run),
        forgetting_table(run),
        *_acceptance(run, refusal),
        "## How to use it",
        USAGE,
        "## Limits",
        _limits(run),
    ]
    return "\n\n".join(parts) + "\n"


# Two of the built-in corpora are read from the running Python, the third is generated.
BUILTIN_LICENCES = {"prose": "PSF-2.0", "code": "PSF-2.0", "arithmetic": "generated"}

USAGE = """```python
import trc2.hf  # makes the model type known; nothing in this folder is executed
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
inputs = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))
```

Or `trc2 generate FOLDER --prompt Once`. `memory="off"` leaves an episodic memory unread."""


def _front_matter(run: FinishedRun) -> str:
    lines = ["---", "library_name: trc2", "pipeline_tag: text-generation", "tags:", "- continual-learning"]
    lines += [f"- {run.config.model.name}", "---"]
    return "\n".join(lines)


def _origin(run: FinishedRun, num_parameters: int, num_events: int, step: int, version: str) -> str:
    model, train = run.config.model, run.config.train
    total = run.stretches[-1].end
    state = "finished" if step == total else f"taken at step {step} of {total}"
    lines = [
        f"- Backbone `{model.name}`: {num_parameters:,} parameters, width {model.d_model}, depth {model.depth}, "
        f"{model.max_positions} positions, {model.vocab_size:,} tokens.",
        f"- Training {state}; {train.tokens_per_step:,} tokens a step, seed {train.seed}; trc2 {version}.",
        f"- Data fingerprint {code(run.data['fingerprint'][:16])}.",
    ]
    lines += _first_weights(run)
    if num_events:
        lines.append(f"- Its episodic memory holds {num_events:,} events and their provenance, saved with the weights.")
    return "\n".join(lines)


def _first_weights(run: FinishedRun) -> list[str]:
    """Which model it began with: its name without the place where it lay, and its weights to the bit."""
    sums = RunFolder(run.folder).first_weights()
    if not isinstance(run.config.model, HFConfig) or not sums:
        return []
    place = run.config.model.pretrained
    name = code(Path(place).name if Path(place).expanduser().is_absolute() else place)
    if len(sums) == 1:
        (file, checksum), *_ = sums.items()
        return [f"- It began with {name}, whose {code(file)} has the sha256 `{checksum}`."]
    whole = hashlib.sha256(as_lines(sums).encode()).hexdigest()
    return [f"- It began with {name}; `sha256sum` of its {len(sums)} files of weights has the sha256 `{whole}`."]


def _tasks(run: FinishedRun) -> str:
    assert run.config.stream is not None
    lines = ["| # | task | steps | train tokens | documents | source | licence |", "|---:|---|---:|---:|---:|---|---|"]
    for number, task in enumerate(run.config.stream.tasks, 1):
        info = run.data["tasks"][task.name]
        split = info["splits"]["train"]
        source = task.builtin or task.dataset or "local files"
        licence = task.license or BUILTIN_LICENCES.get(task.builtin or "", "not stated in the recipe")
        lines.append(
            f"| {number} | {markdown(task.name)} | {task.steps} | {split['tokens']:,} | {split['documents']:,} | "
            f"{markdown(source)} | {markdown(licence)} |"
        )
    return "\n".join(lines)


def _acceptance(run: FinishedRun, refusal: str | None) -> list[str]:
    """What the acceptance check said of it, if it goes on from another model."""
    warning = [] if refusal is None else [f"**Exported all the same: this model {markdown(refusal)}.**"]
    table = "\n".join(gate_lines(run)).strip()
    parts = [*warning, *([table] if table else [])]
    return ["## Acceptance check", *parts] if parts else []


def _limits(run: FinishedRun) -> str:
    lines = [
        "- One run with one seed: differences of a few percent to another run mean nothing.",
        f"- It read {run.stretches[-1].end * run.config.train.tokens_per_step:,} tokens and nothing else: expect no "
        "general knowledge, no instruction following and no safety training.",
        "- Perplexities are per token of its own tokenizer and not comparable with those of another one.",
        "- Its licence must respect those of the data above.",
    ]
    leaks = {
        f"{part} in {other}": share
        for part, shared in (run.data.get("overlap") or {}).items()
        for other, share in shared.items()
        if share >= 0.01
    }
    if leaks:
        told = ", ".join(
            f"{markdown(where)} {share:.0%}" for where, share in sorted(leaks.items(), key=lambda leak: -leak[1])[:6]
        )
        lines.append(f"- Evaluation text whose 13-grams also occur in training text: {told}.")
    return "\n".join(lines)
