"""/v1/versions: which versions there are, what each learned and forgot, and the way forward and back."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trc2.errors import UserError
from trc2.serving.service import Service, read_body
from trc2.serving.shelf import Choice, VersionsFolder
from trc2.serving.wire import Answer, ApiError, parse
from trc2.serving.wire import Request as WireRequest
from trc2.versions.registry import Versions


class Move(WireRequest):
    """Why another version becomes the accepted one."""

    reason: Annotated[str, Field(max_length=1000)] = ""


class VersionObject(Answer):
    """A version with what it learned (`scores`) and the verdict of its acceptance check.

    One that `is_held` passed its check and waits until a person promotes it. One that `is_damaged` cannot be asked: its
    description is not what was written.
    """

    id: str
    object: str = "version"
    created_at: int
    is_latest: bool
    is_loaded: bool
    parent: str | None = None
    replaced: str | None = None
    tasks: list[str] = Field(default_factory=list)
    scores: dict[str, Any] = Field(default_factory=dict)
    verdict: dict[str, Any] | None = None
    reason: str = ""
    is_held: bool = False
    is_damaged: bool = False
    bytes: int | None = None


class VersionList(Answer):
    object: str = "list"
    latest: str
    data: list[VersionObject]


def _describe(service: Service, choice: Choice) -> VersionObject:
    shelf = service.shelf
    is_latest = choice.name == shelf.latest.choice.name
    is_loaded = any(model.choice.name == choice.name for model in shelf.loaded)
    if choice.version is None:
        return VersionObject(id=choice.name, created_at=choice.created, is_latest=is_latest, is_loaded=is_loaded)
    return VersionObject(**choice.version.row(is_latest=is_latest), is_loaded=is_loaded)


async def list_versions(service: Service, _request: Request) -> Response:
    """All versions with a model, newest first."""
    data = [_describe(service, choice) for choice in reversed(service.shelf.choices())]
    return JSONResponse(VersionList(latest=service.shelf.latest.choice.name, data=data).dump())


async def retrieve_version(service: Service, request: Request) -> Response:
    choice = service.shelf.resolve(request.path_params["version"])
    return JSONResponse(_describe(service, choice).dump())


async def promote(service: Service, request: Request) -> Response:
    """Make a version the accepted one."""
    choice = service.shelf.resolve(request.path_params["version"])
    return await _move(service, request, choice.name)


async def rollback(service: Service, request: Request) -> Response:
    """Go back to the version that the accepted one replaced."""
    return await _move(service, request, None)


async def _move(service: Service, request: Request, to: str | None) -> Response:
    """Write the event, load the version, and answer when it is the one that answers by default."""
    move = parse(Move, await read_body(request, service.limits))
    versions = _versions(service)
    try:
        if to is None or to != await asyncio.to_thread(versions.accepted_name):
            await asyncio.to_thread(versions.rollback, to, reason=move.reason)
        model = await asyncio.wait_for(service.shelf.refresh(at_once=True), service.limits.load_seconds)
    except asyncio.TimeoutError:  # answers of versions that are put away are finished first
        raise ApiError(
            503, "The version is accepted, but not loaded yet: GET /health says when it answers.", code="still_loading",
            headers={"retry-after": "5"},
        ) from None  # fmt: skip
    except UserError as error:
        raise ApiError(409, str(error), code="version_conflict") from None
    return JSONResponse(_describe(service, model.choice).dump())


def _versions(service: Service) -> Versions:
    source = service.shelf.source
    if not isinstance(source, VersionsFolder):
        raise ApiError(
            409, "This server has one model and no versions folder: make one by `trc2 promote`.", code="no_versions"
        )
    return source.versions
