"""/openapi.json: the routes and the shapes of their requests and answers, made from the classes that check them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from trc2 import __version__
from trc2.serving import file_routes, files, job_routes, version_routes, wire

Shapes = tuple[type[BaseModel] | None, type[BaseModel] | None, type[BaseModel] | None]  # body, query, answer
SHAPES: dict[tuple[str, str], Shapes] = {
    ("GET", "/v1/models"): (None, None, wire.ModelList),
    ("GET", "/v1/models/{model}"): (None, None, wire.Model),
    ("POST", "/v1/completions"): (wire.CompletionRequest, None, wire.Completion),
    ("POST", "/v1/chat/completions"): (wire.ChatRequest, None, wire.ChatCompletion),
    ("POST", "/v1/files"): (None, None, files.FileObject),
    ("GET", "/v1/files"): (None, file_routes.FileQuery, files.FileList),
    ("GET", "/v1/files/{file}"): (None, None, files.FileObject),
    ("DELETE", "/v1/files/{file}"): (None, None, files.FileDeleted),
    ("POST", "/v1/fine_tuning/jobs"): (job_routes.JobRequest, None, job_routes.JobObject),
    ("GET", "/v1/fine_tuning/jobs"): (None, job_routes.PageQuery, job_routes.JobList),
    ("GET", "/v1/fine_tuning/jobs/{job}"): (None, None, job_routes.JobObject),
    ("POST", "/v1/fine_tuning/jobs/{job}/cancel"): (None, None, job_routes.JobObject),
    ("POST", "/v1/fine_tuning/jobs/{job}/pause"): (None, None, job_routes.JobObject),
    ("POST", "/v1/fine_tuning/jobs/{job}/resume"): (None, None, job_routes.JobObject),
    ("GET", "/v1/fine_tuning/jobs/{job}/events"): (None, job_routes.EventQuery, job_routes.EventList),
    ("GET", "/v1/fine_tuning/jobs/{job}/checkpoints"): (None, job_routes.PageQuery, job_routes.CheckpointList),
    ("GET", "/v1/versions"): (None, None, version_routes.VersionList),
    ("GET", "/v1/versions/{version}"): (None, None, version_routes.VersionObject),
    ("POST", "/v1/versions/rollback"): (version_routes.Move, None, version_routes.VersionObject),
    ("POST", "/v1/versions/{version}/promote"): (version_routes.Move, None, version_routes.VersionObject),
}
UPLOAD = {
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {"purpose": {"enum": list(files.PURPOSES)}, "file": {"type": "string", "format": "binary"}},
}


def document(routes: Iterable[tuple[str, str, Any, Callable[..., Any]]]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    used = {kind for shapes in SHAPES.values() for kind in shapes if kind is not None} | {wire.ErrorBody}
    modes: list[tuple[type[BaseModel], Any]] = [
        (kind, "validation" if issubclass(kind, wire.Request) else "serialization")
        for kind in sorted(used, key=lambda kind: kind.__name__)
    ]
    references, schemas = models_json_schema(modes, ref_template="#/components/schemas/{model}")
    schema_of = {kind: references[kind, mode] for kind, mode in modes}
    paths: dict[str, dict[str, Any]] = {}
    for method, path, right, endpoint in routes:
        body, query, answer = SHAPES.get((method, path), (None, None, None))
        operation: dict[str, Any] = {
            "operationId": f"{method.lower()}{re.sub(r'[^a-z]+', '_', path)}".strip("_"),
            "summary": (endpoint.__doc__ or endpoint.__name__.replace("_", " ")).strip().splitlines()[0],
            "parameters": [*_path_parameters(path), *_query_parameters(query)],
            "responses": {
                "200": _content(schema_of[answer]) if answer else {"description": "The answer."},
                "default": _content(schema_of[wire.ErrorBody], "An error."),
            },
        }
        if right is not None:
            operation["security"] = [{"token": []}]
            operation["description"] = f"Needs the right '{right}'."
        if body is not None:
            operation["requestBody"] = {"content": {"application/json": {"schema": schema_of[body]}}}
        elif (method, path) == ("POST", "/v1/files"):
            operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": UPLOAD}}}
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "trc2 serve", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _content(schema: Any, description: str = "The answer.") -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(query: type[BaseModel] | None) -> list[dict[str, Any]]:
    if query is None:
        return []
    properties = query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": one} for name, one in properties.items()]
