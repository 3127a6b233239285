"""What all routes share: the versions, the limits, the counters, and how a body is read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from trc2.serving.answers import AnswerLimits
from trc2.serving.auth import RateLimit, Token
from trc2.serving.files import Files
from trc2.serving.jobs import Jobs
from trc2.serving.shelf import Shelf
from trc2.serving.wire import ApiError


@dataclass(frozen=True)
class Limits:
    """Bounds of everything that a client decides."""

    body_bytes: int = 4 * 2**20
    file_bytes: int = 512 * 2**20
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
    open_requests: int = 0
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.rate = RateLimit(self.limits.per_minute)

    def take_place(self) -> None:
        """Take one of the places for answers; 429 if all are taken."""
        if self.open_requests >= self.limits.requests:
            raise ApiError(
                429, f"{self.open_requests} requests are being answered, as many as this server allows: ask again.",
                code="server_busy", headers={"retry-after": "1"},
            )  # fmt: skip
        self.open_requests += 1

    def leave_place(self) -> None:
        self.open_requests -= 1


Endpoint = Callable[[Service, Request], Awaitable[Response]]


async def read_body(request: Request, most: int) -> bytes:
    """The body, up to a limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise ApiError(
                413, f"The body has more than {most:,} bytes: send less at once.", code="request_too_large",
                headers={"connection": "close"},
            )  # fmt: skip
    return bytes(body)
