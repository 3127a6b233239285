"""The events of a job as they happen: every event once, oldest first, until the job has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

from starlette.responses import StreamingResponse

from trc2.serving.answers import event_line
from trc2.serving.jobs import FINAL, Jobs
from trc2.serving.service import Service, send_in_time
from trc2.serving.wire import Answer, ApiError

MAX_FOLLOWERS = 32
LOOK_SECONDS, BEAT_SECONDS = 1.0, 15.0
PATIENCE = 10  # times as long as reading the events took is the pause after it: a long log does not take a core


class EventObject(Answer):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: str
    message: str
    type: str
    data: dict[str, Any] | None


class Following:
    """Server-sent events of one job as a response.

    A client that lost the connection asks again and gets all events from the first on. So it never misses one, and
    the ids tell it which ones it has.
    """

    def __init__(self, service: Service, jobs: Jobs, identity: str) -> None:
        if service.followers >= MAX_FOLLOWERS:
            raise ApiError(
                429, f"{service.followers} clients follow jobs already: ask for the list of events instead.",
                code="too_many_followers", headers={"retry-after": "10"},
            )  # fmt: skip
        self.service, self.jobs, self.identity = service, jobs, identity

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {"cache-control": "no-cache"}
        response = StreamingResponse(self._lines(), media_type="text/event-stream", headers=headers)
        self.service.followers += 1
        try:
            await send_in_time(response, scope, receive, send, self.service.limits)
        finally:
            self.service.followers -= 1

    async def _lines(self) -> AsyncIterator[bytes]:
        sent: set[str] = set()
        last_line = time.monotonic()
        while not self.service.is_ending():
            begun = time.monotonic()
            is_over = (await asyncio.to_thread(self.jobs.row, self.identity)).status in FINAL  # before its last events
            for event in await asyncio.to_thread(self.jobs.events, self.identity):
                if event["id"] not in sent:
                    sent.add(event["id"])
                    yield event_line(EventObject(**event))
                    last_line = time.monotonic()
            if is_over:
                yield event_line("[DONE]")
                return
            if time.monotonic() - last_line > BEAT_SECONDS:
                yield b": the job goes on\n\n"  # a broken connection is found by writing to it
                last_line = time.monotonic()
            pause = max(LOOK_SECONDS, PATIENCE * (time.monotonic() - begun))
            while pause > 0 and not self.service.is_ending():
                await asyncio.sleep(min(LOOK_SECONDS, pause))
                pause -= LOOK_SECONDS
