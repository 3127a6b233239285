"""/v1/files: upload, list, retrieve, content and delete."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from trc2.serving.files import CHUNK, Files
from trc2.serving.service import Limits, Service, read_chunks, send_in_time
from trc2.serving.wire import ApiError, parse_query
from trc2.serving.wire import Request as WireRequest


class FileQuery(WireRequest):
    """Which files to list."""

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=10_000, strict=False)] = 100
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


def _files(service: Service) -> Files:
    if service.files is None:
        raise ApiError(
            404, "This server keeps no files: start it with `--data FOLDER` to upload documents.", code="no_data"
        )
    return service.files


async def upload(service: Service, request: Request) -> Response:
    files = _files(service)
    service.take_place()
    try:
        stored = await files.receive(request.headers.get("content-type", ""), read_chunks(request, service.limits))
    finally:
        service.leave_place()
    return JSONResponse(stored.dump())


async def list_files(service: Service, request: Request) -> Response:
    files = _files(service)
    query = parse_query(FileQuery, request.query_params)
    newest_first = query.order == "desc"
    found = await asyncio.to_thread(files.list, query.after, query.limit, newest_first, query.purpose)
    return JSONResponse(found.dump())


async def retrieve(service: Service, request: Request) -> Response:
    found = await asyncio.to_thread(_files(service).get, request.path_params["file"])
    return JSONResponse(found.dump())


async def content(service: Service, request: Request) -> Any:
    """The bytes as they came, for programs: a browser saves them and does not show them."""
    file = await asyncio.to_thread(_files(service).open, request.path_params["file"])
    length = str(os.fstat(file.fileno()).st_size)
    headers = {"content-disposition": "attachment", "x-content-type-options": "nosniff", "content-length": length}
    return Content(service.limits, file, headers)


class Content:
    """The bytes of an open file as a response. It is whole also if the file is deleted while it is sent."""

    def __init__(self, limits: Limits, file: BinaryIO, headers: dict[str, str]) -> None:
        self.limits, self.file, self.headers = limits, file, headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self.file:
            response = StreamingResponse(self._parts(), media_type="application/octet-stream", headers=self.headers)
            await send_in_time(response, scope, receive, send, self.limits)

    async def _parts(self) -> AsyncIterator[bytes]:
        while part := await asyncio.to_thread(self.file.read, CHUNK):
            yield part


async def delete(service: Service, request: Request) -> Response:
    gone = await asyncio.to_thread(_files(service).delete, request.path_params["file"])
    return JSONResponse(gone.dump())
