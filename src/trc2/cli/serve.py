"""`trc2 serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trc2.cli.app import MAX_COUNT, app, err, warn


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="A run folder, a folder with a saved model, or a versions folder.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on. An address that other machines can reach needs --tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0 takes a free one.")] = 8000,
    tokens: Annotated[
        Path | None, typer.Option(help="A file with a right (ask, teach or admin), a token and a name on each line.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder for uploaded documents. Without it, the server refuses uploads.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            envvar="TRC2_REGISTRY",
            help="The URL of a PostgreSQL database for files and jobs. Without it, --data holds an SQLite database.",
        ),
    ] = None,
    hold: Annotated[
        bool,
        typer.Option("--hold", help="A version that a job made waits until a person promotes it, also if it passed."),
    ] = False,
    nproc: Annotated[
        int, typer.Option(min=1, max=1024, help="Processes that train a job together, one for each GPU.")
    ] = 1,
    launcher: Annotated[
        Literal["local", "ray"],
        typer.Option(help="Where jobs run: beside the server, or on a node of the Ray cluster of RAY_ADDRESS."),
    ] = "local",
    max_stored_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of all documents together. More get status 413.")
    ] = 10 * 2**30,
    max_rows: Annotated[int, typer.Option(min=1, max=1024, help="Answers that are written at once, in one batch.")] = 8,
    max_requests: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_COUNT,
            help="Requests that are answered or wait at the same time. Further requests get status 429.",
        ),
    ] = 64,
    max_tokens: Annotated[
        int, typer.Option(min=1, max=MAX_COUNT, help="The longest answer that a request may ask for.")
    ] = 4096,
    per_minute: Annotated[
        int,
        typer.Option(min=1, max=MAX_COUNT, help="Requests of one caller in a minute. Further requests get status 429."),
    ] = 600,
) -> None:
    r"""Serve a model by OpenAI's interface (pip install '.\[serve]' in the checkout)."""
    from trc2.serving.server import AnswerLimits, JobSettings, Limits, Server, ServerSettings, log_to

    limits = Limits(
        stored_bytes=max_stored_bytes,
        requests=max_requests,
        per_minute=per_minute,
        answers=AnswerLimits(max_tokens=max_tokens),
    )
    jobs = JobSettings(hold, nproc, launcher)
    server = Server(ServerSettings(model, host, port, tokens, data, registry, jobs, max_rows, limits=limits), warn)
    err.print(f"{server.settings.model} at {server.url}/v1, until Ctrl-C.", soft_wrap=True)
    with log_to(err):
        server.run()
