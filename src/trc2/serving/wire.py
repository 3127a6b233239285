"""The shapes of OpenAI's interface: requests that are checked, answers, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trc2.errors import brief

MAX_LOGPROBS, MAX_TOP_LOGPROBS, MAX_STOPS, MAX_STOP_LENGTH = 5, 20, 4, 1000
SEED = 2**63
MAX_PROBLEMS = 1000  # of a request that are looked at
MAX_PROMPTS, MAX_PROMPT_TOKENS, MAX_PARTS = 2**16, 2**20, 10_000  # that are read before the limits of a server apply

M = TypeVar("M", bound=BaseModel)


class ApiError(Exception):
    """A refusal as the client sees it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        return kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def body(self) -> dict[str, Any]:
        return ErrorBody(
            error=ErrorDetail(message=self.message, type=self.type, param=self.param, code=self.code)
        ).dump()


class Answer(BaseModel):
    """Something the server sends."""

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class ErrorDetail(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Answer):
    error: ErrorDetail


# ------------------------------------------------------------------------------------------------------------ requests


class Request(BaseModel):
    """Something a client sends. An unknown name is an error: it would have no effect.

    Lists end at the first item that is wrong: naming a million of them would take a minute.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Request):
    include_usage: bool = False
    include_obfuscation: bool = False


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class GenerationRequest(Request):
    """What completions and chat have in common."""

    model: str
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=-SEED, lt=SEED)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    # Accepted at the value that changes nothing, because clients send their defaults.
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _check_stream_options(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options was given without stream=true: leave it out, or stream")
        return self


class CompletionRequest(GenerationRequest):
    prompt: (
        str
        | Annotated[list[str], Field(fail_fast=True, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_PROMPT_TOKENS)]
        | Annotated[
            list[Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_PROMPT_TOKENS)]],
            Field(fail_fast=True, max_length=MAX_PROMPTS),
        ]
        | None
    ) = ""
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _check_best_of(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.choices:
            raise ValueError(f"best_of={self.best_of} is not supported: leave it out, or give the value of n")
        return self


class TextPart(Request):
    type: Literal["text"]
    text: str


class Message(Request):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)]
    name: str | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ResponseFormat(Request):
    type: Literal["text"]


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=10_000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    store: Literal[False] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs was given without logprobs=true: set it, or leave top_logprobs out")
        return self


def parse(kind: type[M], body: bytes) -> M:
    """The request in a body of JSON. The first thing wrong with it is the error."""
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise refusal(error) from None


def parse_query(kind: type[M], query: Mapping[str, str]) -> M:
    """The request in the query of an address."""
    try:
        return kind.model_validate(dict(query))
    except ValidationError as error:
        raise refusal(error) from None


def refusal(error: ValidationError) -> ApiError:
    """The first problem as one sentence with its place. Values are not quoted, they may be long."""
    if error.error_count() > MAX_PROBLEMS:
        return ApiError(
            400, f"The request has {error.error_count():,} wrong names or values: send what /openapi.json describes.",
            code="invalid_value",
        )  # fmt: skip
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not JSON ({brief(first['msg'])}): send an object.", code="invalid_json")
    if first["type"] == "missing":
        return ApiError(400, f"{param} is missing: give it.", param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        place = ".".join(map(str, first["loc"]))
        return ApiError(400, f"{place} is not supported here: leave it out.", param=param, code="unknown_parameter")
    place = ".".join(str(part) for part in first["loc"]) or "The request"
    reason = brief(first["msg"]).removeprefix("Value error, ")
    return ApiError(400, f"{place} is not valid: {reason}.", param=param, code="invalid_value")


# ------------------------------------------------------------------------------------------------------------- answers


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class Completion(Answer):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None


class TopLogprob(Answer):
    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[TokenLogprob]
    refusal: None = None


class ChatMessage(Answer):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Answer):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(Answer):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(Answer):
    role: Literal["assistant"] | None = None
    content: str | None = None


class DeltaChoice(Answer):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatChunk(Answer):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[DeltaChoice]
    usage: Usage | None = None


class Model(Answer):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "trc2"


class ModelList(Answer):
    object: Literal["list"] = "list"
    data: list[Model]
