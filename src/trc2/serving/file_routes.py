"""/v1/files: upload, list, retrieve, content and delete."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from trc2.serving.files import Files
from trc2.serving.service import Service, read_chunks
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


async def content(service: Service, request: Request) -> Response:
    """The bytes as they came, for programs: a browser saves them and does not show them."""
    path = await asyncio.to_thread(_files(service).path, request.path_params["file"])
    if not await asyncio.to_thread(path.is_file):
        raise ApiError(404, "The content of this file is gone: upload it again.", param="file_id", code="not_found")
    headers = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}
    return FileResponse(path, media_type="application/octet-stream", headers=headers)


async def delete(service: Service, request: Request) -> Response:
    gone = await asyncio.to_thread(_files(service).delete, request.path_params["file"])
    return JSONResponse(gone.dump())
