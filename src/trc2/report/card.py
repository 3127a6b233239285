"""A model card from a run folder: what was learnt, in which order, what was forgotten, and what the model is not."""

from __future__ import annotations

import hashlib
import json

from trc2.config.pretrained import HFConfig, base_facts
from trc2.report.markdown import code, markdown, markdown_table
from trc2.report.run import Run
from trc2.report.summary import BOUNDARIES, acceptance_table, boundary_table, forgetting_caption, forgetting_table
from trc2.runs.environment import checksum_lines
from trc2.runs.folder import RunFolder


def model_card(
    run: Run, num_parameters: int, num_events: int, step: int, version: str, refusal: str | None = None,
    *, is_adapter: bool = False,
) -> str:  # fmt: skip
    """README.md of an exported model, in the form the Hugging Face hub reads; `refusal` is why it was not accepted."""
    facts = _base_facts(run)
    kind = markdown(facts["base_model"]) if facts else run.config.model.name
    parts = [
        _front_matter(run, facts, is_adapter),
        f"# {kind} · {markdown(run.name)}",
        _origin(run, num_parameters, num_events, step, version),
        "## What it learned, in this order",
        _tasks(run),
        "## What it kept",
        BOUNDARIES,
        boundary_table(run),
        forgetting_caption(run),
        forgetting_table(run),
        *_acceptance(run, refusal),
        "## How to use it",
        _usage(run, facts, is_adapter),
        "## Limits",
        _limits(run, facts),
    ]
    return "\n\n".join(parts) + "\n"


def _base_facts(run: Run) -> dict[str, str]:
    """Name and licence of the Hugging Face model it began with; nothing for a model of ours."""
    model = run.config.model
    return base_facts(model.pretrained, RunFolder(run.folder).model_files) if isinstance(model, HFConfig) else {}


# Two of the built-in corpora are read from the running Python, the third is generated.
BUILTIN_LICENCES = {"prose": "PSF-2.0", "code": "PSF-2.0", "arithmetic": "generated"}

USAGE = """```python
{imports}

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = {model}.from_pretrained("FOLDER")
inputs = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))
```"""
OF_OURS = "import trc2.hf  # makes the model type known; nothing in this folder is executed"
CLASSES = {False: ("transformers", "AutoModelForCausalLM"), True: ("peft", "AutoPeftModelForCausalLM")}


def _usage(run: Run, facts: dict[str, str], is_adapter: bool) -> str:
    library, model = CLASSES[is_adapter]
    names = {library: [model], "transformers": ["AutoTokenizer"]}
    if not is_adapter:
        names = {library: [model, "AutoTokenizer"]}
    imports = [f"from {package} import {', '.join(classes)}" for package, classes in names.items()]
    usage = USAGE.format(imports="\n".join(imports if facts else [OF_OURS, *imports]), model=model)
    if facts:
        return usage if is_adapter else f"{usage}\n\nOr `trc2 generate FOLDER --prompt Once`."
    unread = ' `memory="off"` leaves its episodic memory unread.' if getattr(run.config.model, "memory", False) else ""
    return f"{usage}\n\nOr `trc2 generate FOLDER --prompt Once`.{unread}"


def _front_matter(run: Run, facts: dict[str, str], is_adapter: bool) -> str:
    library = CLASSES[is_adapter][0] if facts else "trc2"
    stated = [f"{key}: {json.dumps(value)}" for key, value in facts.items()]
    lines = ["---", f"library_name: {library}", *stated, "pipeline_tag: text-generation", "tags:"]
    lines += ["- continual-learning", *([] if facts else [f"- {run.config.model.name}"]), "---"]
    return "\n".join(lines)


def _origin(run: Run, num_parameters: int, num_events: int, step: int, version: str) -> str:
    model, train = run.config.model, run.config.train
    total = run.spans[-1].end
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


def _first_weights(run: Run) -> list[str]:
    """Which model it began with: its name without the place where it lay, and its weights to the bit."""
    sums = RunFolder(run.folder).first_weights()
    if not isinstance(run.config.model, HFConfig) or not sums:
        return []
    name = code(run.config.model.shown_name)
    if len(sums) == 1:
        (file, checksum), *_ = sums.items()
        return [f"- It began with {name}, whose {code(file)} has the sha256 `{checksum}`."]
    whole = hashlib.sha256(checksum_lines(sums).encode()).hexdigest()
    return [f"- It began with {name}; `sha256sum` of its {len(sums)} files of weights has the sha256 `{whole}`."]


def _tasks(run: Run) -> str:
    assert run.config.stream is not None
    trained = run.config.stream.trained
    rows = []
    for number, task in enumerate(trained, 1):
        split = run.data["tasks"][task.name]["splits"]["train"]
        source = task.builtin or task.dataset or "local files"
        licence = task.license or BUILTIN_LICENCES.get(task.builtin or "", "not stated in the recipe")
        sizes = [str(task.steps), f"{split['tokens']:,}", f"{split['documents']:,}"]
        rows.append([str(number), markdown(task.name), *sizes, markdown(source), markdown(licence)])
    heads = ("#", "task", "steps", "train tokens", "documents", "source", "licence")
    table = markdown_table(heads, rows, "rlrrrll")
    others = [markdown(task.name) for task in run.config.stream.tasks if task not in trained]
    return f"{table}\n\nMeasured and not trained: {', '.join(others)}." if others else table


def _acceptance(run: Run, refusal: str | None) -> list[str]:
    """What the acceptance check said of it, if it goes on from another model."""
    warning = [] if refusal is None else [f"**Exported all the same: this model {markdown(refusal)}.**"]
    parts = [*warning, *filter(None, [acceptance_table(run)])]
    return ["## Acceptance check", *parts] if parts else []


def _limits(run: Run, facts: dict[str, str]) -> str:
    tokens, lineage = run.spans[-1].end * run.config.train.tokens_per_step, RunFolder(run.folder).lineage()
    if facts or (lineage is not None and not lineage.is_run):
        base = markdown(facts["base_model"]) if facts else "a saved model"
        read = (
            f"- It read {tokens:,} tokens on top of what {base} had learnt. Only the texts named above were measured; "
            "what else the base model could do, its safety training included, may have changed unnoticed."
        )
    else:
        read = (
            f"- It read {tokens:,} tokens and nothing else: expect no general knowledge, no instruction following and "
            "no safety training."
        )
    licence = f" and that of its base model ({facts.get('license', 'not stated by its folder')})" if facts else ""
    lines = [
        "- One run with one seed: differences of a few percent to another run mean nothing.",
        read,
        "- Perplexities are per token of its own tokenizer and not comparable with those of another one.",
        f"- Its licence must respect those of the data above{licence}.",
    ]
    leaks = {
        f"{part} in {other}": share
        for part, shared in (run.data.get("overlap") or {}).items()
        for other, share in shared.items()
        if share >= 0.01
    }
    if leaks:
        overlaps = ", ".join(
            f"{markdown(where)} {share:.0%}" for where, share in sorted(leaks.items(), key=lambda leak: -leak[1])[:6]
        )
        lines.append(f"- Evaluation text whose 13-grams also occur in training text: {overlaps}.")
    return "\n".join(lines)
