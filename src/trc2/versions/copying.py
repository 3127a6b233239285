"""What a version is made of: the copy of a run with its export, or of a saved model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from trc2.backbones.saved import CONFIG_FILE, is_plain
from trc2.config.pretrained import MODEL_FILES, WEIGHTS, locate, weight_files
from trc2.continuing.acceptance import read_verdict
from trc2.continuing.earlier import read_again, write_held_out
from trc2.errors import UserError
from trc2.recall.store import store_path
from trc2.report.run import read_run
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint, step_of
from trc2.runs.folder import RunFolder, Warn
from trc2.system.files import finite
from trc2.versions.entry import CARD, MODEL, NOT_KEPT, RUN, copy_tree


def copy_source(source: Path, partial: Path, *, anyway: bool, warn: Warn) -> dict[str, Any]:
    """Copy a run or a saved model into the folder of a new version. Returns what version.json says about it."""
    run = RunFolder(source)
    return _copy_run(run, partial, anyway=anyway, warn=warn) if run.is_run else _copy_model(source, partial, warn)


def _copy_run(run: RunFolder, partial: Path, *, anyway: bool, warn: Warn) -> dict[str, Any]:
    """Export the model, and copy what `trc2 continue` needs."""
    from trc2 import __version__
    from trc2.hf.export import export_run  # imports transformers, which takes seconds

    config, paths = run.config(), list_checkpoints(run.checkpoints)
    is_whole = paths and step_of(paths[-1]) == run.schedule(config).total_steps
    has_ended = any(record.kind == "end" for record in run.records())
    if has_ended and not paths:
        raise UserError(
            f"{run} has no checkpoint any more, because old attempts are pruned: teach the text again, or restore "
            "the checkpoint from a copy."
        )
    if not is_whole or not has_ended:
        raise UserError(f"{run} has not ended: `trc2 resume {run}` first.")
    load_checkpoint(paths[-1])  # it must be whole
    export_run(run.path, partial / MODEL, __version__, anyway=anyway, warn=warn)
    names = [
        path.name
        for path in run.path.iterdir()
        if path.name not in {"checkpoints", "interpolated", *NOT_KEPT} and not path.name.startswith(".")
    ]
    copy_tree(run.path, partial / RUN, [*names, f"checkpoints/{paths[-1].name}"])
    if not run.held_out.is_dir():
        write_held_out(partial / RUN / run.held_out.name, read_again(run))
    read, lineage, verdict = read_run(run.path), run.lineage(), read_verdict(run)
    taught = read.order if lineage is None else lineage.tasks
    return {
        "tasks": list(taught),
        "verdict": None if verdict is None else verdict.describe(),
        "scores": {
            task: dict(zip(("before", "learned", "kept"), map(finite, scores), strict=True))
            for task, scores in read.task_scores().items()
        },
    }


def _copy_model(source: Path, partial: Path, warn: Warn) -> dict[str, Any]:
    """Copy a saved model: weights, settings, tokenizer and card."""
    if store_path(source).is_file():
        warn(f"The documents that {source} was taught are not part of the version: keep {source} if you need them.")
    names = {path.name for path in weight_files(locate(str(source), with_weights=True))}
    names |= {*MODEL_FILES, CARD, CONFIG_FILE, WEIGHTS[1]}
    if not is_plain(source):
        names |= {path.name for path in source.iterdir() if path.suffix == ".json"}
    (partial / MODEL).mkdir(parents=True)
    for name in sorted(names):
        if (source / name).is_file():  # in the hub's cache a file is a link
            shutil.copyfile(source / name, partial / MODEL / name)
    return {"tasks": [], "verdict": None, "scores": {}}
