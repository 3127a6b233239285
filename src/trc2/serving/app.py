"""The HTTP application: routes, who may use them, limits, request ids, and errors as the client expects them."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import secrets
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trc2.errors import UserError, sentence_of
from trc2.serving import answers, file_routes, job_routes, page_routes, version_routes
from trc2.serving.answers import Asked, event_line
from trc2.serving.auth import Right, check_origin, check_right, find_caller
from trc2.serving.metrics import metrics
from trc2.serving.openapi import document
from trc2.serving.service import Endpoint, Service, read_body, send_in_time
from trc2.serving.shelf import LATEST, Choice
from trc2.serving.wire import Answer, ApiError, ChatRequest, CompletionRequest, Model, ModelList, parse

log = logging.getLogger("trc2.serving")
T = TypeVar("T")


def make_app(service: Service) -> Any:
    """The ASGI application."""
    routes = [
        Route(path, _guarded(service, right, endpoint), methods=[method]) for method, path, right, endpoint in ROUTES
    ]
    routes += [Route(path, answer, methods=["GET"]) for path, answer in page_routes.answers().items()]

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        yield
        service.shelf.close()

    handlers = {HTTPException: _http_error}
    return Front(service, Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan))


class Front:
    """Around all routes: a request id, the origin of the request, and one line in the log without any text."""

    def __init__(self, service: Service, app: Any) -> None:
        self.service, self.app = service, app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id, start, status, is_begun = f"req_{secrets.token_hex(12)}", time.monotonic(), 500, False
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Any) -> None:
            nonlocal status, is_begun
            if message["type"] == "http.response.start":
                status, is_begun = message["status"], True
                message.setdefault("headers", []).append((b"x-request-id", request_id.encode()))
            await send(message)

        try:
            check_origin(Request(scope).headers, has_tokens=bool(self.service.tokens))
            await self.app(scope, receive, send_with_id)
        except ApiError as error:
            await error_response(error)(scope, receive, send_with_id)
        except ClientDisconnect:
            pass
        except Exception as error:  # while an answer was sent: the connection is closed, and no trace is printed
            api_error = _as_api_error(error, request_id)
            if not is_begun:
                await error_response(api_error)(scope, receive, send_with_id)
        finally:
            took = 1000 * (time.monotonic() - start)
            route = scope.get("route")
            self.service.statuses[getattr(route, "path", "unknown"), status] += 1
            path = scope.get("raw_path", b"")[:200].decode("ascii", "replace")  # decoded, it could be a second line
            log.info("%s %s %d %.0f ms %s", scope["method"], path, status, took, request_id)


def _guarded(service: Service, right: Right | None, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint behind its right and the rate limit. Exceptions become errors of the interface."""

    async def run(request: Request) -> Response:
        try:
            if right is not None:
                client = request.client.host if request.client else "unknown"
                caller = find_caller(service.tokens, request.headers, client)
                check_right(caller, right)
                service.rate.check(caller.name)
            return await endpoint(service, request)
        except ApiError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return error_response(_as_api_error(error, request.state.request_id))

    return run


def _as_api_error(error: Exception, request_id: str) -> ApiError:
    """An error that no endpoint expected. Its message may quote a document, so the log has its type and place only."""
    sentence = sentence_of(error)
    if isinstance(error, UserError) and sentence is not None:
        return ApiError(400, sentence)
    place = traceback.extract_tb(error.__traceback__)[-1]
    log.error("%s in %s:%s %s", type(error).__name__, place.filename, place.lineno, request_id)
    if _is_about_space(error):
        return ApiError(507, "The server's disk is full: ask its operator to make room.", code="disk_full")
    if isinstance(error, SQLAlchemyError):
        return ApiError(
            503, "The server's database cannot be used now: ask again.", code="database_unavailable",
            headers={"retry-after": "5"},
        )  # fmt: skip
    return ApiError(500, "The server failed (its log has the request id of this answer): ask again.", code="internal")


def _is_about_space(error: BaseException) -> bool:
    """Whether a disk, a quota or a limit of the system left no room for a file or for the database."""
    if isinstance(error, SQLAlchemyError):
        return "disk is full" in str(getattr(error, "orig", ""))
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def error_response(error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, error.headers)


async def _http_error(_request: Request, error: Exception) -> Response:
    """What Starlette itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    sentences = {404: "There is no such address: see /openapi.json.", 405: "This method is not known here."}
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    api_error = ApiError(error.status_code, sentences.get(error.status_code, str(error.detail)), code=code)
    api_error.headers.update(error.headers or {})
    return error_response(api_error)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, which ends if the client closes the connection."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


# -------------------------------------------------------------------------------------------------------------- routes


async def health(service: Service, request: Request) -> Response:
    """Whether the server runs, which version answers by default, and why that is not the accepted one.

    The reason may name folders and tasks, so it needs the right to ask.
    """
    shelf, problem = service.shelf, service.shelf.problem
    if problem is not None:
        try:
            find_caller(service.tokens, request.headers, "")
        except ApiError:
            problem = "The accepted version cannot be read: ask with a token for the reason."
    return JSONResponse({"status": "ok", "latest": shelf.latest.fingerprint, "problem": problem})


def _model(choice: Choice, name: str | None = None) -> Model:
    return Model(id=name or choice.name, created=choice.created)


async def list_models(service: Service, _request: Request) -> Response:
    """All versions, and `latest`, which is one of them."""
    models = [_model(choice) for choice in await asyncio.to_thread(service.shelf.choices)]
    models.append(_model(service.shelf.resolve(LATEST), LATEST))
    return JSONResponse(ModelList(data=models).dump())


async def retrieve_model(service: Service, request: Request) -> Response:
    name = request.path_params["model"]
    return JSONResponse(_model(service.shelf.resolve(name), name).dump())


async def completions(service: Service, request: Request) -> Response:
    asked_for = parse(CompletionRequest, await read_body(request, service.limits))
    echo = bool(asked_for.echo)
    return await _answer(
        service,
        request,
        answers.begin_completion(service.shelf, asked_for, service.limits.answers),
        lambda asked: answers.completion(asked, echo),
        (lambda asked: answers.completion_events(asked, echo, asked_for.wants_usage)) if asked_for.stream else None,
    )


async def chat_completions(service: Service, request: Request) -> Response:
    asked_for = parse(ChatRequest, await read_body(request, service.limits))
    return await _answer(
        service,
        request,
        answers.begin_chat(service.shelf, asked_for, service.limits.answers),
        answers.chat,
        (lambda asked: answers.chat_events(asked, asked_for.wants_usage)) if asked_for.stream else None,
    )


async def _answer(
    service: Service,
    request: Request,
    beginning: Coroutine[Any, Any, Asked],
    whole: Callable[[Asked], Coroutine[Any, Any, Answer]],
    stream: Callable[[Asked], AsyncIterator[bytes]] | None,
) -> Any:
    """Begin a request, and send its answer whole or as it is written. It holds a place until its end."""
    try:
        service.take_place()
    except ApiError:
        beginning.close()
        raise
    try:
        asked = await beginning
        if stream is not None:
            return Stream(service, asked, stream(asked))
        answer = await unless_gone(request, whole(asked))
    except BaseException:
        service.leave_place()
        raise
    service.leave_place()
    return JSONResponse(answer.dump(), headers=seed_header(asked))


def seed_header(asked: Asked) -> dict[str, str]:
    """The seed of an answer, also if the request had none: with it, the same answer can be asked for again."""
    return {"x-seed": str(asked.sampling.seed)}


class Stream:
    """Server-sent events as a response. An error on the way is the last event."""

    def __init__(self, service: Service, asked: Asked, events: AsyncIterator[bytes]) -> None:
        self.service, self.asked, self.events = service, asked, events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {"cache-control": "no-cache", **seed_header(self.asked)}
        response = StreamingResponse(
            self._lines(scope["state"]["request_id"]), media_type="text/event-stream", headers=headers
        )

        try:
            await send_in_time(response, scope, receive, send, self.service.limits)
        finally:
            self.asked.ticket.cancel()
            self.service.leave_place()

    async def _lines(self, request_id: str) -> AsyncIterator[bytes]:
        try:
            async for line in self.events:
                yield line
        except ApiError as error:
            yield event_line(json.dumps(error.body()))
        except Exception as error:
            yield event_line(json.dumps(_as_api_error(error, request_id).body()))


async def openapi(_service: Service, _request: Request) -> Response:
    """This document."""
    return Response(_document(), media_type="application/json")


@cache
def _document() -> bytes:
    """Made once: it takes as long as an answer, and needs no token."""
    return json.dumps(document(ROUTES)).encode()


ROUTES: list[tuple[str, str, Right | None, Endpoint]] = [
    ("GET", "/health", None, health),
    ("GET", "/metrics", "ask", metrics),
    ("GET", "/openapi.json", None, openapi),
    ("GET", "/v1/models", "ask", list_models),
    ("GET", "/v1/models/{model}", "ask", retrieve_model),
    ("POST", "/v1/completions", "ask", completions),
    ("POST", "/v1/chat/completions", "ask", chat_completions),
    ("POST", "/v1/files", "teach", file_routes.upload),
    ("GET", "/v1/files", "teach", file_routes.list_files),
    ("GET", "/v1/files/{file}", "teach", file_routes.retrieve),
    ("GET", "/v1/files/{file}/content", "teach", file_routes.content),
    ("DELETE", "/v1/files/{file}", "teach", file_routes.delete),
    ("POST", "/v1/fine_tuning/jobs", "teach", job_routes.create),
    ("GET", "/v1/fine_tuning/jobs", "teach", job_routes.list_jobs),
    ("GET", "/v1/fine_tuning/jobs/{job}", "teach", job_routes.retrieve),
    ("POST", "/v1/fine_tuning/jobs/{job}/cancel", "teach", job_routes.cancel),
    ("POST", "/v1/fine_tuning/jobs/{job}/pause", "teach", job_routes.pause),
    ("POST", "/v1/fine_tuning/jobs/{job}/resume", "teach", job_routes.resume),
    ("GET", "/v1/fine_tuning/jobs/{job}/events", "teach", job_routes.list_events),
    ("GET", "/v1/fine_tuning/jobs/{job}/checkpoints", "teach", job_routes.list_checkpoints),
    ("GET", "/v1/versions", "ask", version_routes.list_versions),
    ("GET", "/v1/versions/{version}", "ask", version_routes.retrieve_version),
    ("POST", "/v1/versions/rollback", "admin", version_routes.rollback),
    ("POST", "/v1/versions/{version}/promote", "admin", version_routes.promote),
]
