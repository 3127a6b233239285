"""/v1/fine_tuning/jobs: create, list, retrieve, cancel, pause, resume, events and checkpoints."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trc2.config import TaskConfig
from trc2.continuing.request import ContinuationRequest, child_config
from trc2.distributed.group import check_divides
from trc2.errors import UserError
from trc2.serving.following import EventObject, Following
from trc2.serving.jobs import Jobs, new_job_id
from trc2.serving.service import Service, read_body
from trc2.serving.shelf import LATEST
from trc2.serving.store import JOBS, now, page
from trc2.serving.wire import Answer, ApiError, parse, parse_query
from trc2.serving.wire import Request as WireRequest
from trc2.versions.find import folder_to_continue

DEFAULT_TASK = "documents"
DEFAULT_FORGETTING = 0.05
MAX_STEPS = 10**6
AUTO = "auto"


class Hyperparameters(WireRequest):
    """`auto` is one pass over the text, with the learning rate and the batch of the model that goes on."""

    n_epochs: Literal["auto"] | Annotated[int, Field(ge=1, le=50)] | None = None
    learning_rate_multiplier: Literal["auto"] | Annotated[float, Field(gt=0, le=100)] | None = None
    batch_size: Literal["auto"] | Annotated[int, Field(ge=1, le=2**20)] | None = None


class Supervised(WireRequest):
    hyperparameters: Hyperparameters | None = None


class Method(WireRequest):
    type: Literal["supervised"]
    supervised: Supervised | None = None


Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9_-]*$")]


class JobRequest(WireRequest):
    """A job. `suffix` names the task. The same name again is another week of it."""

    model: str
    training_file: str
    validation_file: None = None
    hyperparameters: Hyperparameters | None = None
    method: Method | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    suffix: Name | None = None
    integrations: Annotated[list[Any], Field(max_length=0)] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = None

    @property
    def chosen(self) -> Hyperparameters:
        nested = None if self.method is None or self.method.supervised is None else self.method.supervised
        return (None if nested is None else nested.hyperparameters) or self.hyperparameters or Hyperparameters()


class JobError(Answer):
    code: str
    message: str
    param: str | None


class JobProgress(Answer):
    """Steps of training. After the last one comes the acceptance check."""

    step: int
    steps: int


class JobObject(Answer):
    """A job as OpenAI has it, with three fields of ours: `task`, `progress` and the `verdict` of a refused model."""

    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    status: str
    task: str
    progress: JobProgress | None
    verdict: dict[str, Any] | None
    model: str
    fine_tuned_model: str | None
    organization_id: str = "trc2"
    training_file: str
    validation_file: None = None
    result_files: list[str]
    trained_tokens: int | None
    seed: int
    error: JobError | None
    hyperparameters: dict[str, Any]
    metadata: dict[str, str]
    method: dict[str, Any]


class CheckpointObject(Answer):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: dict[str, float]
    step_number: int


class JobList(Answer):
    object: Literal["list"] = "list"
    data: list[JobObject]
    has_more: bool


class EventList(Answer):
    object: Literal["list"] = "list"
    data: list[EventObject]
    has_more: bool


class CheckpointList(Answer):
    object: Literal["list"] = "list"
    data: list[CheckpointObject]
    has_more: bool


Item = TypeVar("Item", EventObject, CheckpointObject)


class PageQuery(WireRequest):
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=1000, strict=False)] = 20


class EventQuery(PageQuery):
    """With `stream`, all events as they happen, oldest first, as server-sent events."""

    stream: Annotated[bool, Field(strict=False)] = False


def _jobs(service: Service) -> Jobs:
    if service.jobs is None:
        raise ApiError(
            404, "This server cannot teach: start it with a versions folder and `--data FOLDER`.", code="no_jobs"
        )
    return service.jobs


def _describe(jobs: Jobs, row: Any) -> JobObject:
    progress = jobs.progress(row)
    words = list(row.arguments)
    names = ("id", "created_at", "finished_at", "status", "model", "fine_tuned_model", "training_file", "seed")
    return JobObject(
        **{name: getattr(row, name) for name in names},
        estimated_finish=None if progress is None or row.status != "running" else progress.finish,
        task=words[words.index("--task") + 1].partition("=")[0],
        progress=None if progress is None else JobProgress(step=progress.step, steps=progress.steps),
        verdict=jobs.verdict(row),
        result_files=row.result_files or [],
        trained_tokens=row.tokens if row.status == "succeeded" else None,
        error=None if row.error is None else JobError(**row.error),
        hyperparameters=row.hyperparameters,
        metadata=row.metadata,
        method={"type": "supervised", "supervised": {"hyperparameters": row.hyperparameters}},
    )


async def _answer(jobs: Jobs, identity: str) -> Response:
    described = await asyncio.to_thread(lambda: _describe(jobs, jobs.row(identity)))
    return JSONResponse(described.dump())


# ------------------------------------------------------------------------------------------------------------ creating


async def create(service: Service, request: Request) -> Response:
    asked = parse(JobRequest, await read_body(request, service.limits))
    jobs = _jobs(service)
    accepted = (await asyncio.to_thread(service.shelf.source.latest)).name
    if asked.model not in (LATEST, accepted):
        raise ApiError(
            400, f"A job goes on from the accepted version: give the model {LATEST} or {accepted}.", param="model",
            code="model_not_accepted",
        )  # fmt: skip
    identity = await asyncio.to_thread(_create, jobs, asked, accepted)
    jobs.changed.set()
    return await _answer(jobs, identity)


def _create(jobs: Jobs, asked: JobRequest, accepted: str) -> str:
    """Copy the text, choose the steps, check the settings, and add the row. All in a thread."""
    identity, settings = new_job_id(), asked.metadata or {}
    task = asked.suffix or DEFAULT_TASK
    try:
        text, num_bytes = jobs.copy_text(identity, asked.training_file, "text")
        keep, keep_bytes = [], 0
        if "keep_file" in settings:
            kept, keep_bytes = jobs.copy_text(identity, settings["keep_file"], "keep")
            keep = [("old", kept)]
        limit = _number(settings, "max_forgetting", DEFAULT_FORGETTING, 0, 1e6)
        share = _number(settings, "replay_share", None, 0, 0.9)
        stop_at = _number(settings, "stop_at", None, 0, 1e6)
        overrides = [] if asked.seed is None else [f"train.seed={asked.seed}"]
        config = _config(jobs, task, text, keep, share, overrides)
        multiplier, batch = asked.chosen.learning_rate_multiplier, asked.chosen.batch_size
        if isinstance(multiplier, float):
            overrides.append(f"train.learning_rate={config.train.learning_rate * multiplier!r}")
        if isinstance(batch, int):
            overrides.append(f"train.batch_size={_divided(batch, config.train.micro_batches)}")
        config = _config(jobs, task, text, keep, share, overrides)
        per_step = config.train.tokens_per_step
        epochs = 1 if asked.chosen.n_epochs in (None, AUTO) else int(asked.chosen.n_epochs or 1)
        # A token has about four bytes. The exact number is known only after the text is packed.
        steps = min(MAX_STEPS, max(1, math.ceil(epochs * num_bytes / 4 / per_step)))
        steps = int(_number(settings, "steps", steps, 1, MAX_STEPS) or steps)
        arguments = [
            "continue", str(jobs.versions.folder.resolve()), "--task", f"{task}={text.resolve()}",
            "--steps", str(steps), "--max-forgetting", repr(limit), "--promote", "--json",
            f"stream.cache={jobs.cache.resolve()}",
        ]  # fmt: skip
        arguments += ["--hold"] if jobs.settings.hold else []
        arguments += [word for name, folder in keep for word in ("--keep", f"{name}={folder.resolve()}")]
        arguments += ["--replay-share", repr(share)] if share is not None else []
        arguments += ["--stop-at", repr(stop_at)] if stop_at is not None else []
        arguments += overrides
        row = {
            "id": identity, "created_at": now(), "status": "queued", "model": accepted,
            "training_file": asked.training_file, "seed": config.train.seed, "tokens": steps * per_step,
            "metadata": settings, "arguments": arguments, "text_bytes": num_bytes + keep_bytes,
            "hyperparameters": {
                "n_epochs": epochs, "learning_rate_multiplier": multiplier or AUTO, "batch_size": batch or AUTO,
            },
        }  # fmt: skip
        return jobs.create(row)
    except BaseException:
        jobs.remove_text(identity)
        raise


def _config(
    jobs: Jobs, task: str, text: Path, keep: list[tuple[str, Path]], share: float | None, overrides: list[str]
) -> Any:
    """The settings that the run will have. Settings that are not possible are refused before anything is queued."""
    kept = tuple(TaskConfig(name=name, folder=str(folder.resolve())) for name, folder in keep)
    tasks = (TaskConfig(name=task, folder=str(text.resolve()), steps=1),)
    try:
        parent = folder_to_continue(jobs.versions.folder)
        config = child_config(parent, ContinuationRequest(tasks, share, tuple(overrides), kept), text / "child")
        check_divides(config.train.micro_batches, jobs.settings.nproc)
        return config
    except UserError as error:
        raise ApiError(400, str(error), code="invalid_job") from None


def _divided(batch: int, micro_batches: int) -> int:
    """The sequences of a micro-batch."""
    if batch % micro_batches:
        raise ApiError(
            400, f"batch_size={batch} is not a multiple of {micro_batches}, the micro-batches of a step: choose one.",
            param="hyperparameters", code="invalid_value",
        )  # fmt: skip
    return batch // micro_batches


def _number(settings: dict[str, str], name: str, default: Any, low: float, high: float) -> Any:
    """A number among the metadata, which are text."""
    if name not in settings:
        return default
    try:
        value = float(settings[name])
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ApiError(
            400, f"metadata.{name} is not a number from {low:g} to {high:g}: correct it.", param="metadata",
            code="invalid_value",
        )  # fmt: skip
    return value


# -------------------------------------------------------------------------------------------------------- the others


async def list_jobs(service: Service, request: Request) -> Response:
    jobs, query = _jobs(service), parse_query(PageQuery, request.query_params)
    return JSONResponse((await asyncio.to_thread(_list, jobs, query)).dump())


def _list(jobs: Jobs, query: PageQuery) -> JobList:
    found = page(jobs.database, JOBS, after=query.after, limit=query.limit, newest_first=True)
    return JobList(data=[_describe(jobs, row) for row in found.rows], has_more=found.has_more)


async def retrieve(service: Service, request: Request) -> Response:
    return await _answer(_jobs(service), request.path_params["job"])


async def cancel(service: Service, request: Request) -> Response:
    jobs, identity = _jobs(service), request.path_params["job"]
    await jobs.stop(identity, "cancelled")
    return await _answer(jobs, identity)


async def pause(service: Service, request: Request) -> Response:
    jobs, identity = _jobs(service), request.path_params["job"]
    await jobs.stop(identity, "paused")
    return await _answer(jobs, identity)


async def resume(service: Service, request: Request) -> Response:
    jobs, identity = _jobs(service), request.path_params["job"]
    await asyncio.to_thread(jobs.resume, identity)
    jobs.changed.set()
    return await _answer(jobs, identity)


async def list_events(service: Service, request: Request) -> Any:
    """Newest first, as OpenAI has it. With `stream` as they happen."""
    jobs, query, identity = _jobs(service), parse_query(EventQuery, request.query_params), request.path_params["job"]
    if query.stream:
        await asyncio.to_thread(jobs.row, identity)  # an unknown id is a 404 before anything is sent
        return Following(service, jobs, identity)
    found = await asyncio.to_thread(_events, jobs, identity, query)
    return JSONResponse(found.dump())


def _events(jobs: Jobs, identity: str, query: PageQuery) -> EventList:
    """A long job has many events, so they are read and checked in a thread."""
    part, has_more = _part([EventObject(**event) for event in reversed(jobs.events(identity))], query)
    return EventList(data=part, has_more=has_more)


async def list_checkpoints(service: Service, request: Request) -> Response:
    """The accepted version, once there is one: it is the only state of a job that can be asked."""
    jobs, query = _jobs(service), parse_query(PageQuery, request.query_params)
    row = await asyncio.to_thread(jobs.row, request.path_params["job"])
    checkpoints = []
    if row.fine_tuned_model is not None:
        records = await asyncio.to_thread(jobs.records, row)
        losses = [record.metrics["train/loss_lm"] for record in records if "train/loss_lm" in record.metrics]
        step = max((record.step for record in records), default=0)
        checkpoints.append(
            CheckpointObject(
                id=f"ftckpt-{row.id.removeprefix('ftjob-')}",
                created_at=row.finished_at,
                fine_tuned_model_checkpoint=row.fine_tuned_model,
                fine_tuning_job_id=row.id,
                metrics={"step": step, **({"train_loss": losses[-1]} if losses else {})},
                step_number=step,
            )
        )
    part, has_more = _part(checkpoints, query)
    return JSONResponse(CheckpointList(data=part, has_more=has_more).dump())


def _part(items: list[Item], query: PageQuery) -> tuple[list[Item], bool]:
    """One page of a list that is made as it is asked for, and whether there are more."""
    start = 0
    if query.after is not None:
        places = [place for place, item in enumerate(items) if item.id == query.after]
        if not places:
            raise ApiError(404, "There is no entry with the id in 'after'.", param="after", code="not_found")
        start = places[0] + 1
    return items[start : start + query.limit], start + query.limit < len(items)
