"""Connections of clients: how many there are at once, and how long one may stay without asking for anything."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 10_000


def most_connections() -> int:
    """Half of the files that the process may open, so that connections never keep a job from its own files."""
    if sys.platform == "win32":
        return MOST
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft // 2))


def bounded(idle_seconds: float, most: int) -> type[H11Protocol]:
    """The class of connections for uvicorn, which itself waits for the head of a request without end."""

    class Connection(H11Protocol):
        waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            else:
                self.watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_watching()
            super().connection_lost(exc)

        def watch(self) -> None:
            """Start the clock where the head of a request is awaited, or a body that has its answer already."""
            is_awaited = self.conn.their_state is h11.IDLE
            is_left_over = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
            if not is_awaited and not is_left_over:
                self.stop_watching()
            elif self.waiting is None:
                self.waiting = self.loop.call_later(idle_seconds, self.transport.abort)

        def stop_watching(self) -> None:
            if self.waiting is not None:
                self.waiting.cancel()
                self.waiting = None

    return Connection
