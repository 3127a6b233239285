"""What all routes share: the versions, the limits, the counters, and how a body is read."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trc2.serving.answers import AnswerLimits
from trc2.serving.auth import RateLimit, Token
from trc2.serving.files import Files
from trc2.serving.jobs import Jobs
from trc2.serving.shelf import Shelf
from trc2.serving.wire import ApiError
from trc2.serving.worker import Worker

MIN_BYTES_PER_SECOND = 1000  # of a body, after the first seconds


@dataclass(frozen=True)
class Limits:
    """Bounds of everything that a client decides."""

    body_bytes: int = 4 * 2**20
    file_bytes: int = 512 * 2**20
    stored_bytes: int = 10 * 2**30  # of all files, and of the copies that waiting jobs have
    idle_seconds: float = 30.0  # that a client may leave the server waiting, while it sends or reads
    load_seconds: float = 120.0  # that promote and rollback wait until the version answers
    requests: int = 64  # answers that are being written or wait
    per_minute: int = 600
    answers: AnswerLimits = field(default_factory=AnswerLimits)


@dataclass
class Service:
    """All that the routes share."""

    shelf: Shelf
    tokens: tuple[Token, ...] = ()
    limits: Limits = field(default_factory=Limits)
    files: Files | None = None  # None without a data folder
    jobs: Jobs | None = None  # None without a data folder or a versions folder
    worker: Worker | None = None  # the same
    open_requests: int = 0
    followers: int = 0  # clients that get the events of a job as they happen
    is_ending: Callable[[], bool] = lambda: False  # then nothing more is sent to followers
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.rate = RateLimit(self.limits.per_minute)

    def take_place(self) -> None:
        """Take one of the places for answers. 429 if all are taken."""
        if self.open_requests >= self.limits.requests:
            raise ApiError(
                429, f"{self.open_requests} requests are being answered, as many as this server allows: ask again.",
                code="server_busy", headers={"retry-after": "1"},
            )  # fmt: skip
        self.open_requests += 1

    def leave_place(self) -> None:
        self.open_requests -= 1


Endpoint = Callable[[Service, Request], Awaitable[Response]]


async def read_chunks(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """The body in pieces. A client that sends nothing for long, or too slowly on the whole, is refused."""
    stream, begun, received = aiter(request.stream()), time.monotonic(), 0
    while True:
        left = begun + limits.idle_seconds + received / MIN_BYTES_PER_SECOND - time.monotonic()
        try:
            chunk = await asyncio.wait_for(anext(stream, None), max(0.0, min(left, limits.idle_seconds)))
        except asyncio.TimeoutError:
            raise ApiError(
                408, "The body arrives too slowly, and the rest was not waited for: send it again.",
                code="request_timeout", headers={"connection": "close"},
            ) from None  # fmt: skip
        if chunk is None:
            return
        received += len(chunk)
        yield chunk


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, up to a limit."""
    body = bytearray()
    async for chunk in read_chunks(request, limits):
        body += chunk
        if len(body) > limits.body_bytes:
            raise ApiError(
                413, f"The body has more than {limits.body_bytes:,} bytes: send less at once.",
                code="request_too_large", headers={"connection": "close"},
            )  # fmt: skip
    return bytes(body)


class NotRead(Exception):
    """A client does not take what is sent to it."""


async def send_in_time(response: Any, scope: Any, receive: Any, send: Any, limits: Limits) -> None:
    """Send a stream, and end it if its client does not read: others need its place."""

    async def send_or_end(message: Any) -> None:
        try:
            await asyncio.wait_for(send(message), limits.idle_seconds)
        except asyncio.TimeoutError:
            raise NotRead from None

    with suppress(NotRead):
        await response(scope, receive, send_or_end)
