"""A running server: on the main thread for the command, on a thread of its own for Python."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from trc2.errors import UserError
from trc2.runs.folder import Warn
from trc2.runs.lock import share_folder
from trc2.serving.auth import Token, is_local, read_tokens
from trc2.system.files import make_folder

try:
    import uvicorn

    from trc2.serving.answers import AnswerLimits
    from trc2.serving.app import make_app
    from trc2.serving.connections import bounded, most_connections
    from trc2.serving.files import Files
    from trc2.serving.jobs import Jobs, JobSettings
    from trc2.serving.service import Limits, Service
    from trc2.serving.shelf import Shelf, VersionsFolder, find_source
    from trc2.serving.store import open_database
    from trc2.serving.worker import Worker
except ModuleNotFoundError as error:
    raise UserError(
        f"The server's libraries are not installed ({error}): use `pip install '.[serve]'` in the checkout."
    ) from None

__all__ = ["AnswerLimits", "JobSettings", "Limits", "Server", "ServerSettings", "check_address", "log_to"]

GRACE_SECONDS = 30  # for answers that are being written when the server stops


@dataclass(frozen=True)
class ServerSettings:
    """How a model is served. Port 0 takes a free one."""

    model: Path
    host: str = "127.0.0.1"
    port: int = 8000
    tokens: Path | None = None
    data: Path | None = None
    registry: str | None = None  # the URL of a database. Without it, the data folder has one
    jobs: JobSettings = field(default_factory=JobSettings)
    max_rows: int = 8
    max_loaded: int = 2
    limits: Limits = field(default_factory=Limits)


class Server:
    """A model behind HTTP. Used as a context manager, it serves until the block ends."""

    def __init__(self, settings: ServerSettings, warn: Warn = lambda _: None) -> None:
        source = find_source(settings.model)
        tokens = () if settings.tokens is None else read_tokens(settings.tokens)
        check_address(settings.host, tokens)
        self.settings = settings
        shelf = Shelf(source, settings.max_rows, settings.max_loaded, warn)
        self._held = ExitStack()
        self._socket = _listen(settings.host, settings.port, settings.limits.idle_seconds)
        self._held.callback(self._socket.close)
        with self._held.pop_all() as held:  # an error closes what is open so far
            self.service = Service(shelf, tokens, settings.limits)
            if settings.data is not None:
                _open_data(settings.data, settings, self.service, held)
            elif settings.registry is not None:
                raise UserError("--registry is for documents and jobs: give --data FOLDER too.")
            self._held = held.pop_all()
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        config = uvicorn.Config(
            make_app(self.service), log_config=None, access_log=False, lifespan="on", server_header=False,
            proxy_headers=False,  # a client could choose the address by which its rate is limited
            http=bounded(settings.limits.idle_seconds, most_connections()), ws="none",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self.service.is_ending = lambda: self._server.should_exit
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None

    def run(self) -> None:
        """Serve until a signal arrives."""
        try:
            asyncio.run(self._serve())
        finally:
            self._held.close()

    async def _serve(self) -> None:
        await self.service.shelf.refresh()  # a model that cannot be read is an error before the first request
        beside = [asyncio.ensure_future(self.service.shelf.watch())]
        if self.service.worker is not None:
            beside.append(asyncio.ensure_future(self.service.worker.work()))
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def __enter__(self) -> Server:
        self._thread = threading.Thread(target=self._run_in_thread, name="trc2 server", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            self._thread.join(0.02)
        if self._problem is not None:
            raise self._problem
        return self

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._problem = error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        assert self._thread is not None
        self._thread.join()


def _open_data(folder: Path, settings: ServerSettings, service: Service, held: ExitStack) -> None:
    """The data folder: files, and jobs where there are versions to teach. Several servers may use it."""
    make_folder(folder)
    database = open_database(folder, settings.registry)
    held.callback(database.dispose)
    service.files = Files(folder, database, service.limits.file_bytes, service.limits.stored_bytes)
    leftovers = [service.files.remove_leftovers]
    if isinstance(service.shelf.source, VersionsFolder):
        versions = service.shelf.source.versions
        service.jobs = Jobs(folder, database, service.files, versions, settings.jobs)
        service.worker = Worker(service.jobs, service.shelf)
        leftovers.append(service.jobs.remove_leftovers)
    held.enter_context(share_folder(folder, partial(_call_all, leftovers)))


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


def check_address(host: str, tokens: tuple[Token, ...]) -> None:
    """Other machines may reach a server only if it has tokens."""
    if not tokens and not is_local(host):
        raise UserError(f"--host {host} can be reached from other machines: give --tokens FILE, or use 127.0.0.1.")


def _listen(host: str, port: int, idle_seconds: float) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening: Any = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # the system drops a client that takes nothing of what was sent
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1000, int(2000 * idle_seconds)))
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(f"{host}:{port} cannot be used ({error.strerror or error}): choose another port.") from None
    return listening


@contextmanager
def log_to(console: Console) -> Iterator[None]:
    """Print one line for each request, inside the block."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(f"{datetime.now():%H:%M:%S} {record.getMessage()}", soft_wrap=True)

    log, lines = logging.getLogger("trc2.serving"), Lines()
    before = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(before)
