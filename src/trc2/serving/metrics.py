"""/metrics: counters and gauges of the server as Prometheus reads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from trc2.serving.service import Service
from trc2.serving.store import JOBS

Sample = tuple[dict[str, str], float]


async def metrics(service: Service, _request: Request) -> Response:
    shelf = service.shelf
    engines = [(model.choice.name, model.engine) for model in shelf.loaded]
    jobs = await asyncio.to_thread(_jobs, service)
    text = "".join([
        _family("trc2_requests_total", "counter", "Answered requests by route and status.", [
            ({"route": route, "status": str(status)}, count) for (route, status), count in service.statuses.items()
        ]),
        _family("trc2_open_requests", "gauge", "Requests that are being answered or wait.",
                [({}, service.open_requests)]),
        _family("trc2_generated_tokens_total", "counter", "Tokens that were written.", [({}, shelf.tokens_made)]),
        _family("trc2_rows", "gauge", "Answers that are being written, by version.",
                [({"version": name}, engine.num_rows) for name, engine in engines]),
        _family("trc2_waiting_prompts", "gauge", "Prompts that have not begun, by version.",
                [({"version": name}, engine.num_waiting) for name, engine in engines]),
        _family("trc2_latest", "gauge", "1 for the version that answers by default.",
                [({"version": shelf.latest.choice.name}, 1)]),
        _family("trc2_jobs", "gauge", "Jobs by status.", jobs),
        _family("trc2_uptime_seconds", "gauge", "Seconds since the start.", [({}, time.time() - service.started)]),
    ])  # fmt: skip
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _jobs(service: Service) -> list[Sample]:
    if service.jobs is None:
        return []
    with service.jobs.database.connect() as connection:
        counts = connection.execute(sa.select(JOBS.c.status, sa.func.count()).group_by(JOBS.c.status)).all()
    return [({"status": str(status)}, float(count)) for status, count in counts]


def _family(name: str, kind: str, purpose: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {purpose}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{inside}}} {value:.15g}" if inside else f"{name} {value:.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
