"""`trc2.serve`: a model behind OpenAI's HTTP interface, for as long as a block lasts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trc2.errors import UserError

if TYPE_CHECKING:
    from trc2.serving.server import Server


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tokens: str | Path | None = None,
    data: str | Path | None = None,
    registry: str | None = None,
    hold: bool = False,
    max_rows: int = 8,
    max_requests: int = 64,
    per_minute: int = 100_000,
) -> Server:
    """A server on a thread of its own: `with trc2.serve("runs/my") as server:` and then `server.url`.

    model         a run folder, a folder with a saved model, or a versions folder
    host, port    where it listens. Port 0 takes a free one
    tokens        a file with a right (ask, teach or admin), a token and a name on each line
    data          a folder for uploaded documents
    registry      the URL of a PostgreSQL database for files and jobs. Without it, `data` holds one
    hold          whether a version that a job made waits until a person promotes it, also if it passed its check
    max_rows      answers that are written at once, in one batch
    max_requests  requests that are answered or wait. One more gets status 429
    per_minute    requests of one caller in a minute. More get status 429
    """
    from trc2.serving.server import JobSettings, Limits, Server, ServerSettings

    if not (0 <= port < 2**16 and min(max_rows, max_requests, per_minute) >= 1):
        raise UserError("A number is out of range: port is 0 to 65535, the others are at least 1.")
    limits = Limits(requests=max_requests, per_minute=per_minute)
    files, folder = (None if path is None else Path(path) for path in (tokens, data))
    jobs = JobSettings(hold)
    return Server(ServerSettings(Path(model), host, port, files, folder, registry, jobs, max_rows, limits=limits))
