"""The page at `/`: four files that are sent as they are. They show nothing until the reader's token is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).with_name("page")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# No script or style but our own files, no other site, no frame around it, and no form that leaves it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # the page belongs to the server that sends it
}


def answers() -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """The files by their addresses."""
    paths = {"/": FOLDER / "index.html"}
    paths |= {f"/page/{path.name}": path for path in sorted(FOLDER.iterdir()) if path.suffix in (".css", ".js", ".svg")}
    return {address: _sending(path) for address, path in paths.items()}


def _sending(path: Path) -> Callable[[Request], Awaitable[Response]]:
    content, kind = path.read_bytes(), f"{KINDS[path.suffix]}; charset=utf-8"

    async def send(_request: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=kind)

    return send
