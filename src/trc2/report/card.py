"""A model card from a run folder: what was learned, in which order, what was forgotten, and what the model is not."""

from __future__ import annotations

import hashlib

from trc2.config.pretrained import base_facts
from trc2.recall.store import Store
from trc2.report.markdown import fill_template, markdown
from trc2.report.run import Run
from trc2.report.summary import acceptance_table, kept_text, overlaps_of
from trc2.runs.environment import checksum_lines
from trc2.runs.folder import RunFolder

# Two of the built-in corpora are read from the running Python, the third is generated.
BUILTIN_LICENCES = {"prose": "PSF-2.0", "code": "PSF-2.0", "arithmetic": "generated"}
MIN_OVERLAP, MAX_OVERLAPS = 0.01, 6


def model_card(
    run: Run, num_parameters: int, num_events: int, step: int, version: str, refusal: str | None = None,
    *, is_adapter: bool = False, store: Store | None = None,
) -> str:  # fmt: skip
    """README.md of an exported model, in the form the Hugging Face hub reads. `refusal` is why it was not accepted."""
    files, config = RunFolder(run.folder), run.config
    facts, weights, lineage = _base_facts(run), files.first_weights(), files.lineage()
    is_from_model = lineage is not None and not lineage.is_run
    overlaps = [f"{markdown(f'{part} in {task}')} {share:.0%}" for share, part, task in overlaps_of(run, MIN_OVERLAP)]
    return fill_template(
        "card.md.jinja",
        run=run,
        model=config.model,
        train=config.train,
        stream=config.stream,
        steps={span.task: span.end - span.start for span in run.spans},
        facts=facts,
        base=facts["base_model"] if facts else "a saved model" if is_from_model else None,
        weights=weights,
        weights_checksum=hashlib.sha256(checksum_lines(weights).encode()).hexdigest(),
        num_parameters=num_parameters,
        num_events=num_events,
        num_tokens=run.end * config.train.tokens_per_step,
        step=step,
        version=version,
        refusal=refusal,
        is_adapter=is_adapter,
        store=store,
        builtin_licences=BUILTIN_LICENCES,
        kept=kept_text(run),
        acceptance=acceptance_table(run),
        overlaps=overlaps[:MAX_OVERLAPS],
    )


def _base_facts(run: Run) -> dict[str, str]:
    """Name and licence of the Hugging Face model it began with. Empty for other models."""
    pretrained = run.config.model.pretrained_from
    return {} if pretrained is None else base_facts(pretrained, RunFolder(run.folder).model_files)
