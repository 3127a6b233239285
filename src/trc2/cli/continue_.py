"""`trc2 continue`: more tasks for a finished run or a saved model, and the acceptance check after it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trc2.cli.app import (
    MAX_COUNT,
    Overrides,
    Processes,
    Restarts,
    app,
    err,
    launched,
    out,
    progress,
    show,
    show_summary,
    warn,
)
from trc2.cli.check import REFUSED, send_verdict, show_verdict, tell_verdict
from trc2.cli.promote import KeepModels, Notify, prune, tell_promotion, waiting_line
from trc2.errors import UserError
from trc2.system.torchrun import is_first_process

if TYPE_CHECKING:
    from trc2.config import TaskConfig


@app.command("continue")
def continue_(
    parent: Annotated[
        Path, typer.Argument(help="The finished run, a folder with a saved model, or a versions folder.")
    ],
    overrides: Overrides = None,
    task: Annotated[
        list[str],
        typer.Option(
            help="A new task as NAME=FOLDER. Repeat the option for more tasks. NAME alone needs one of the "
            "source options below."
        ),
    ] = [],  # noqa: B006 - typer reads the default, and no code changes it
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="New run folder. The default is PARENT+TASK, or the next attempt in a versions folder."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps for every new task.", min=1, max=MAX_COUNT)] = 100,
    minutes: Annotated[
        float | None,
        typer.Option(help="Choose --steps so that the command takes about this long on this machine.", min=0.05),
    ] = None,
    builtin: Annotated[str | None, typer.Option(help="A built-in corpus: prose, code or arithmetic.")] = None,
    source: Annotated[
        str | None, typer.Option("--folder", help="A folder of text, or one file: .txt, .md, .jsonl …")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="A Hugging Face dataset id.")] = None,
    subset: Annotated[str | None, typer.Option(help="The dataset's configuration.")] = None,
    format_: Annotated[str, typer.Option("--format", help="text, gsm8k, wikitext or a template.")] = "text",
    keep: Annotated[
        list[str],
        typer.Option(
            help="Text that a saved model should go on knowing, as NAME=FOLDER. The acceptance check judges "
            "it, and part of it is replayed."
        ),
    ] = [],  # noqa: B006
    max_forgetting: Annotated[
        float | None,
        typer.Option(help="Exit with 3 unless every past task's perplexity surely rose by no more than this.", min=0),
    ] = None,
    stop_at: Annotated[
        float | None,
        typer.Option(
            help="Stop when a past task's perplexity rose by more than this in an evaluation. The run ends "
            "with the last checkpoint within the limit.",
            min=0,
        ),
    ] = None,
    dream: Annotated[
        int | None,
        typer.Option(
            help="Without old text: let a saved model generate this many tokens, replay half of them and "
            "judge the rest.",
            min=1,
            max=MAX_COUNT,
        ),
    ] = None,
    max_drift: Annotated[
        float | None,
        typer.Option(
            help="Exit with 3 unless the predictions on held-out new text surely moved by no more than this. "
            "The measure is the mean KL divergence from the parent's predictions, in nats per token.",
            min=0,
        ),
    ] = None,
    interpolate: Annotated[
        str | None,
        typer.Option(
            help="After the training, go only this share (above 0, at most 1) of the way from parent to child. "
            "auto takes the largest of 0.1, 0.25, 0.5, 0.75 and 1 that the acceptance check accepts."
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            help="The model of the adapters, if their adapter_config.json does not name a folder on this machine."
        ),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge adapters into their model first, and train all weights.")
    ] = False,
    replay_share: Annotated[
        float | None, typer.Option(help="Replay this share of every step's tokens from now on.", min=0, max=0.9)
    ] = None,
    tries_shares: Annotated[
        bool,
        typer.Option(
            "--try-shares",
            help="Only make short trial runs and print the cheapest replay share that keeps the limit.",
        ),
    ] = False,
    promote: Annotated[
        bool,
        typer.Option("--promote", help="With a versions folder: make the child the accepted version if it passes."),
    ] = False,
    hold: Annotated[
        bool,
        typer.Option("--hold", help="With --promote: add the child as a version that a person has to accept."),
    ] = False,
    keep_models: KeepModels = None,
    notify: Notify = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict, or the trial runs, as JSON.")] = False,
    nproc: Processes = 1,
    max_restarts: Restarts = 0,
) -> None:
    """Teach a finished run, or a saved model, more tasks, in a new folder that points to its parent.

    Parent and child are compared task by task on held-out text, with 95 % intervals from a bootstrap over documents.
    A saved model does not say what it learned: name text it should go on knowing by --keep.
    Exit code 3 if --max-forgetting is given and a task is not surely within: the parent remains the model to use.
    """
    from trc2.continuing.acceptance import check_acceptance, judge_child
    from trc2.continuing.continue_run import default_folder, train_child
    from trc2.continuing.interpolation import read_choice
    from trc2.continuing.request import MIN_DIVIDED, ContinuationRequest, child_config, has_old_text
    from trc2.continuing.trial_runs import prediction, remove_trials, save_trial_runs, try_shares
    from trc2.system.notify import check_command
    from trc2.training.resume import resume_run
    from trc2.versions.attempt import VARIABLE, plan_attempt
    from trc2.versions.find import folder_to_continue
    from trc2.versions.registry import Versions, is_versions

    check_command(notify)
    versions = Versions(parent) if is_versions(parent) else None
    if promote and versions is None:
        raise UserError(
            f"--promote needs a versions folder, which {parent} is not: make one by `trc2 promote --first`."
        )
    if promote and max_forgetting is None and max_drift is None:
        raise UserError(
            "--promote accepts a child only if it stays within a limit: give --max-forgetting too, or --max-drift."
        )
    for option, is_given in (("--hold", hold), ("--keep-models", keep_models is not None)):
        if is_given and not promote:
            raise UserError(f"{option} is about a version that --promote adds: give --promote too.")
    source_options = {"builtin": builtin, "folder": source, "dataset": dataset, "subset": subset}
    tasks = _tasks(task, steps, format_, {name: value for name, value in source_options.items() if value is not None})
    kept = [_task_of(word, "--keep", steps, format_) for word in keep]
    if folder is not None and not folder.name:
        raise UserError(f"--out {str(folder)!r} is not a name for a new folder: give one, such as runs/child.")
    parent = folder_to_continue(parent)
    if base is not None or merge:
        from trc2.continuing.adapters import adapter_parent

        parent = adapter_parent(parent, base, merge=merge)
    target = folder or default_folder(parent, tasks)
    request = ContinuationRequest(
        tuple(tasks), replay_share, tuple(overrides or ()), tuple(kept), max_forgetting, None, stop_at, max_drift,
        interpolate=read_choice(interpolate),
    )  # fmt: skip
    if dream is not None:
        from trc2.continuing.dreams import dream_task

        with progress("dreaming") as watch:
            dreamt = dream_task(parent, child_config(parent, replace(request, share=None), target), dream, watch)
        request = replace(request, keep=(*request.keep, dreamt), generated=dreamt.name)
    if minutes is not None:
        from trc2.setup.speed_probe import steps_within

        steps = steps_within(child_config(parent, request, target), 60 * minutes, len(tasks))
        err.print(f"--steps {steps} for each new task take about {minutes:g} minutes on this machine.", soft_wrap=True)
        if versions is not None:
            err.print("Give --steps if you repeat the command: another time teaches the text again.", soft_wrap=True)
        request = replace(request, tasks=tuple(new_task.replace(steps=steps) for new_task in tasks))
    is_begun = False
    if versions is not None:
        attempt = plan_attempt(versions, request, folder)
        if attempt.taught_by is not None:
            taught = versions.get(attempt.taught_by)
            lines = [f"{taught.name} was taught this text already. Another --steps teaches it again."]
            if taught.is_held:
                lines.append(waiting_line(versions, taught))
            content = {"schema": 1, "versions": str(versions.folder), "taught_by": taught.name}
            show(as_json, {**content, "is_held": taught.is_held}, *lines)
            return
        parent, target, is_begun = attempt.parent, attempt.folder, attempt.is_begun
        request = replace(request, tasks=attempt.tasks, keep=attempt.keep)
        if nproc > 1:
            os.environ[VARIABLE] = str(target)  # all processes use the folder that the first one chose
    check_acceptance(parent, request.keep, max_forgetting, stop_at, max_drift)
    if tries_shares:
        if max_forgetting is None:
            raise UserError("--try-shares looks for a share that stays under a limit: give --max-forgetting too.")
        with progress("trial runs") as watch:
            trials = try_shares(
                parent, request.tasks, max_forgetting, overrides=request.overrides, keep=request.keep, beside=target,
                watch=watch, warn=warn,
            )  # fmt: skip
        kept_in = save_trial_runs(trials, target)
        if as_json:
            print(json.dumps(trials.describe(), indent=2))
        else:
            for line in trials.lines():
                out.print(line)
            out.print(f"Kept in {kept_in}: the acceptance check of the real run will compare.", soft_wrap=True)
        if trials.cheapest is None:
            raise typer.Exit(REFUSED)
        return
    predicted = prediction(parent, target, request.tasks, replay_share, request.overrides, warn)
    request = replace(request, prediction=predicted)
    config = child_config(parent, request, target)
    if nproc > 1 and launched(nproc, max_restarts, config):
        return
    remove_trials(target)
    if replay_share and not has_old_text(parent, config):
        warn(
            f"{parent} brings no old text to replay, so --replay-share {replay_share:g} replays the new text: name old "
            f"text by --keep NAME=FOLDER, with at least {MIN_DIVIDED} documents, or by stream.replay_prefill_files."
        )
    console = err if as_json else out
    if is_begun:
        err.print(f"{target} was interrupted and goes on.", soft_wrap=True)
        resume_run(target, [], console)
    else:
        train_child(parent, target, request, console)
    if not is_first_process():
        return
    verdict = judge_child(target, warn, parent)
    assert verdict is not None, "a child has a parent"
    send_verdict(notify, target, verdict)
    if versions is None or not promote or not verdict.passed:
        if versions is not None and promote:
            prune(versions, keep_models)  # also if week after week is refused
        show_verdict(target, verdict, as_json=as_json, with_summary=True)
        return
    if not as_json:
        show_summary(target)
        tell_verdict(target, verdict)
    version = versions.promote(target, hold=hold, warn=warn)
    tell_promotion(versions, version.name, keep_models, notify, as_json=as_json, verdict=verdict.describe())


def _tasks(given: list[str], steps: int, format_: str, source: dict[str, str]) -> list[TaskConfig]:
    """The new tasks. At most one of them has only a name, and the source options describe it."""
    from trc2.config import TaskConfig

    bare = [word for word in given if "=" not in word]
    if not given:
        raise UserError("There is no task to go on with: name one by --task NAME=FOLDER.")
    if len(bare) > 1:
        raise UserError(f"--task {bare[1]} has no folder of its own: write it as --task {bare[1]}=FOLDER.")
    if source and not bare:
        raise UserError(f"--{next(iter(source))} belongs to no task: name it by --task NAME, without a folder.")
    if "folder" in source:
        source = {**source, "folder": str(Path(source["folder"]).resolve())}
    return [
        TaskConfig(name=word, steps=steps, format=format_, **source)
        if "=" not in word
        else _task_of(word, "--task", steps, format_)
        for word in given
    ]


def _task_of(word: str, option: str, steps: int, format_: str) -> TaskConfig:
    from trc2.config import TaskConfig

    name, _, folder = word.partition("=")
    if not folder:
        raise UserError(f"{option} {word} names no folder: write it as {option} NAME=FOLDER.")
    return TaskConfig(name=name, steps=steps, format=format_, folder=str(Path(folder).resolve()))
