"""`trc2 teach`: documents for a saved model, which reads them from now on, or for a server, which trains on them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trc2.cli.app import MAX_COUNT, AsJson, app, err, progress, show, warn
from trc2.errors import UserError

if TYPE_CHECKING:
    from trc2.serving.client import Client
    from trc2.teaching.teach import Change

REFUSED, FAILED = 3, 1
ROWS = (".jsonl", ".ndjson")  # sent as they are, because the server knows more kinds of rows
Tokens = Annotated[
    Path | None,
    typer.Option(help="The file with tokens of `trc2 serve`. Without it, the token is read from TRC2_TOKEN."),
]


@app.command()
def teach(
    model: Annotated[
        str, typer.Argument(help="A folder with a saved model, or the address of a server, such as http://HOST:8000.")
    ],
    files: Annotated[list[Path], typer.Argument(help="Files or folders of text.")],
    keep: Annotated[
        list[Path] | None, typer.Option(help="A file or folder of text that must not get worse.", show_default=False)
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="Text format of rows, e.g. '{title}: {text}'.")] = "text",
    max_bytes: Annotated[
        int | None,
        typer.Option(help="Most bytes of stored tokens, now and later. A random sample stays.", show_default=False),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Server: the task's name. The same name again is another week of it.")
    ] = None,
    max_forgetting: Annotated[
        float | None,
        typer.Option(help="Server: refuse the model unless every past task's perplexity rose by no more than this."),
    ] = None,
    replay_share: Annotated[
        float | None, typer.Option(help="Server: replay this share of every step's tokens.", min=0, max=0.9)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Server: optimizer steps. The default is one pass.", min=1, max=MAX_COUNT)
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Server: wait until the job has ended.")] = True,
    tokens: Tokens = None,
    as_json: AsJson = False,
) -> None:
    """Teach documents to a saved model without training, or to a server, which trains a new version.

    A saved model reads them from now on. They are stored in the folder recall/ of the model, and the weights do not
    change. See docs/recall.md.
    A server gets them as a job. Exit codes: 0 passed the acceptance check, 3 refused by it, 1 any other end of the job.
    See docs/serve.md.
    """
    from trc2.serving.client import Client, find_token, is_url

    options = {"--task": task, "--max-forgetting": max_forgetting, "--replay-share": replay_share, "--steps": steps,
               "--tokens": tokens, "--no-wait": None if wait else True}  # fmt: skip
    if is_url(model):
        if max_bytes is not None:
            raise UserError(f"--max-bytes is for a saved model, but {model} is a server: leave it out.")
        metadata = {"max_forgetting": max_forgetting, "replay_share": replay_share, "steps": steps}
        client = Client(model, find_token(tokens, "teach"))
        given = {name: str(value) for name, value in metadata.items() if value is not None}
        teach_server(client, files, keep or [], format_, task, given, wait=wait, as_json=as_json)
        return
    for name, value in options.items():
        if value is not None:
            raise UserError(f"{name} is for a server, but {model} is not an address: leave it out, or write http://….")
    teach_model(model, files, keep or [], format_, max_bytes, as_json=as_json)


# -------------------------------------------------------------------------------------------------------- a saved model


def teach_model(
    model: str, files: Sequence[Path], keep: Sequence[Path], format_: str, max_bytes: int | None, *, as_json: bool
) -> None:
    from trc2.teaching.documents import read_documents
    from trc2.teaching.teach import teach as teach_documents

    with progress("teaching"):
        change = teach_documents(
            model, read_documents(files, warn, format_), warn, keep=read_documents(keep, warn, format_),
            max_bytes=max_bytes,
        )  # fmt: skip
    tokens = sum(len(document.tokens) for document in change.documents)
    known = f" {change.known} were known already." if change.known else ""
    known += f" {change.left_out:,} found no room and were left out." if change.left_out else ""
    sentence = (
        f"Taught {len(change.documents):,} documents with {tokens:,} tokens in {change.seconds:.1f} s.{known} "
        f"The store holds {len(change.store.documents):,} documents in {change.store.num_bytes:,} bytes."
    )
    show(as_json, {"schema": 1, "model": model, **change.describe()}, sentence, *gate_sentences(change))


def gate_sentences(change: Change) -> list[str]:
    """How the gate was found, and what it does."""
    if change.gate is None:
        return []
    if change.gain is None or change.keep_rise is None:
        return [f"Gate: {change.gate.reason}."]
    return [
        f"Gate: {change.gate.reason}. Loss of taught documents by counts of the others: {-change.gain:+.3f} nats. "
        f"Loss of the text to keep: {change.keep_rise:+.4f} nats."
    ]


# ------------------------------------------------------------------------------------------------------------- a server


def teach_server(
    client: Client,
    files: Sequence[Path],
    keep: Sequence[Path],
    format_: str,
    task: str | None,
    metadata: dict[str, str],
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """Upload the documents, start a job, and follow it to its end."""
    stored = _upload(client, files, format_)
    if keep:
        metadata = {**metadata, "keep_file": _upload(client, keep, format_)["id"]}
    wanted: dict[str, Any] = {"model": "latest", "training_file": stored["id"], "metadata": metadata}
    if task is not None:
        wanted["suffix"] = task
    job = client.post("/v1/fine_tuning/jobs", wanted)
    count = f"{stored['documents']:,} document{'' if stored['documents'] == 1 else 's'}"
    err.print(f"{job['id']} teaches {job['model']} {count} as {job['task']}.", soft_wrap=True)
    content: dict[str, Any] = {"schema": 1, "server": client.url, "file": stored, "job": job, "version": None}
    if not wait:
        show(as_json, content, job["id"])
        return
    with following() as see:
        job = content["job"] = client.follow(job["id"], see)
    if job["status"] == "succeeded":
        version = content["version"] = client.version(job["fine_tuned_model"])
        sentence = f"{version['id']} is accepted now."
        if version["is_held"]:
            number = version["id"].partition("-")[0].lstrip("0")
            sentence = f"{version['id']} waits: `trc2 versions {client.url} --promote {number}` accepts it."
        show(as_json, content, *verdict_lines(version["verdict"]), sentence)
        return
    error = job["error"] or {"code": None, "message": f"The job was {job['status']}."}
    show(as_json, content, *verdict_lines(job["verdict"]))
    err.print(error["message"], style="bold red", soft_wrap=True)
    raise typer.Exit(REFUSED if error["code"] == "forgetting" else FAILED)


def _upload(client: Client, paths: Sequence[Path], format_: str) -> dict[str, Any]:
    """Send all documents as one file of rows."""
    from trc2.teaching.documents import read_documents

    with tempfile.TemporaryDirectory() as folder, progress("uploading"):
        path = Path(folder) / "documents.jsonl"
        with path.open("wb") as rows:
            if format_ == "text" and all(one.suffix.lower() in ROWS and one.is_file() for one in paths):
                for one in paths:
                    with one.open("rb") as source:
                        shutil.copyfileobj(source, rows)
                    rows.write(b"\n")  # an empty line has no effect
            else:
                for document in read_documents(paths, warn, format_):
                    rows.write(json.dumps({"text": document.text}).encode() + b"\n")
        return dict(client.upload(path, f"{paths[0].resolve().stem or 'documents'}.jsonl"))


@contextmanager
def following() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show a job's state as it changes: a spinner in a terminal, and a line for each state and tenth of the steps."""
    last: tuple[str, int] | None = None
    with progress("waiting") as say:

        def see(job: dict[str, Any]) -> None:
            nonlocal last
            line = state_line(job)
            done = job["progress"] or {"step": 0, "steps": 1}
            state = job["status"], 10 * done["step"] // max(1, done["steps"])
            if last is not None and job["progress"] is None and state[0] == last[0]:
                return  # the run becomes a version, and says nothing meanwhile
            say(line)
            if state != last and job["status"] in ("queued", "running", "paused"):
                err.print(line, soft_wrap=True)
            last = state

        yield see


def state_line(job: dict[str, Any]) -> str:
    """One line about a job that is not over."""
    import time

    from trc2.system.console import clock

    done = job["progress"]
    if job["status"] != "running" or done is None:
        return str(job["status"])
    if done["step"] >= done["steps"]:
        return f"step {done['step']} of {done['steps']}, acceptance check"
    finish = job["estimated_finish"]
    left = "" if finish is None else f", {clock(max(0.0, finish - time.time()))}"
    return f"step {done['step']} of {done['steps']}{left}"


def verdict_lines(verdict: dict[str, Any] | None) -> list[str]:
    """A line for each past task that the acceptance check compared."""
    lines = []
    for name, task in ((verdict or {}).get("tasks") or {}).items():
        rise, low, high = (float(task[end]) for end in ("rise", "low", "high"))
        bounds = f"{rise:+.1%} ({low:+.1%} … {high:+.1%})"
        lines.append(f"{task['documents']} documents of {name}: {bounds}, {task['verdict']}.")
    return lines
