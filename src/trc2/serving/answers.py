"""/v1/completions and /v1/chat/completions: from a checked request to an answer, whole or as it is written."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from trc2.errors import UserError
from trc2.serving.engine import AnswerSampling, EngineClosed, Event, Failure, Piece, PromptScores, Ticket, TokenScore
from trc2.serving.shelf import ServedModel, Shelf
from trc2.serving.text import token_text
from trc2.serving.wire import (
    Answer,
    ApiError,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    Delta,
    DeltaChoice,
    GenerationRequest,
    TokenLogprob,
    TopLogprob,
    Usage,
)

DEFAULT_MAX_TOKENS = 16  # of a completion, as OpenAI has it


@dataclass(frozen=True)
class AnswerLimits:
    """What one request may ask for."""

    max_tokens: int = 4096
    max_prompts: int = 128
    max_echoed: int = 65_536  # tokens of prompts whose scores are sent


@dataclass
class Asked:
    """A request that has begun in an engine, with the events that arrive for it."""

    model: ServedModel
    prompts: list[list[int]]
    sampling: AnswerSampling
    events: asyncio.Queue[Event]
    ticket: Ticket
    id: str
    hidden: list[int]  # tokens at the start of each prompt that the tokenizer added
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.sampling.choices

    @property
    def heading(self) -> dict[str, Any]:
        """What every part of the answer says about itself."""
        names = {"model": self.model.choice.name, "system_fingerprint": self.model.fingerprint}
        return {"id": self.id, "created": self.created, **names}

    async def pieces(self) -> AsyncGenerator[Piece | PromptScores, None]:
        """All events, until every choice is finished. Leaving early takes the rows out of the engine."""
        open_choices = self.num_choices
        try:
            while open_choices:
                event = await self.events.get()
                if isinstance(event, Failure):
                    raise ApiError(500, event.sentence, code="generation_failed")
                if isinstance(event, Piece):
                    open_choices -= event.finish is not None
                yield event
        finally:
            self.ticket.cancel()

    async def whole(self, scores: dict[int, tuple[TokenScore, ...]]) -> list[Piece]:
        """Each choice as one piece, when all are finished. The scores of prompts go into `scores`."""
        pieces: list[list[Piece]] = [[] for _ in range(self.num_choices)]
        async with aclosing(self.pieces()) as events:
            async for event in events:
                if isinstance(event, PromptScores):
                    scores[event.prompt] = event.tokens
                else:
                    pieces[event.choice].append(event)
        return [
            replace(
                parts[-1],
                text="".join(part.text for part in parts),
                tokens=tuple(chain(*(part.tokens for part in parts))),
            )
            for parts in pieces
        ]

    def usage(self, completion_tokens: int) -> Usage:
        prompt_tokens = sum(map(len, self.prompts))
        total = prompt_tokens + completion_tokens
        return Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, total_tokens=total)


Prepared = tuple[list[list[int]], AnswerSampling, list[int]]


async def begin(
    shelf: Shelf, request: GenerationRequest, prepare: Callable[[ServedModel], Prepared], kind: str
) -> Asked:
    """Begin a request in the version that it names. The version is the same until the answer is complete."""
    events: asyncio.Queue[Event] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def deliver(event: Event) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    while True:
        try:
            model = await shelf.model(request.model)
        except UserError as error:  # its files are damaged or gone
            raise ApiError(
                503, str(error), param="model", code="model_unreadable", headers={"retry-after": "60"}
            ) from None
        try:
            prompts, sampling, hidden = await asyncio.to_thread(prepare, model)  # a long prompt takes seconds
            ticket = model.engine.submit(prompts, sampling, deliver)
        except EngineClosed:  # it was put away while this request waited: its place has been taken by another one
            continue
        except UserError as error:
            raise ApiError(400, str(error), param=_param_of(kind), code="invalid_prompt") from None
        return Asked(model, prompts, sampling, events, ticket, f"{kind}-{secrets.token_hex(12)}", hidden)


def _param_of(kind: str) -> str:
    return "messages" if kind == "chatcmpl" else "prompt"


def _sampling(request: GenerationRequest, limits: AnswerLimits, max_tokens: int | None, default: int) -> dict[str, Any]:
    if max_tokens is not None and max_tokens > limits.max_tokens:
        raise ApiError(
            400, f"max_tokens={max_tokens} is more than this server allows: ask for at most {limits.max_tokens}.",
            param="max_tokens", code="invalid_value",
        )  # fmt: skip
    return {
        "max_tokens": min(default, limits.max_tokens) if max_tokens is None else max_tokens,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "seed": secrets.randbits(32) if request.seed is None else request.seed,
        "stop": request.stops,
        "choices": request.choices,
    }


def _check_count(prompts: Sequence[object], limits: AnswerLimits) -> None:
    if not 1 <= len(prompts) <= limits.max_prompts:
        raise ApiError(
            400, f"The request has {len(prompts)} prompts: give 1 to {limits.max_prompts}.", param="prompt",
            code="invalid_value",
        )  # fmt: skip


def event_line(data: Answer | str) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data.dump())
    return f"data: {text}\n\n".encode()


# --------------------------------------------------------------------------------------------------------- completions


async def begin_completion(shelf: Shelf, request: CompletionRequest, limits: AnswerLimits) -> Asked:
    given = _prompts(request)
    _check_count(given, limits)

    def prepare(model: ServedModel) -> Prepared:
        prompts = [model.engine.encode(one) if isinstance(one, str) else one for one in given]
        sampling = AnswerSampling(
            **_sampling(request, limits, request.max_tokens, DEFAULT_MAX_TOKENS),
            logprobs=request.logprobs,
            scores_prompt=bool(request.echo) and request.logprobs is not None,
        )
        if sampling.scores_prompt and (count := sampling.choices * sum(map(len, prompts))) > limits.max_echoed:
            raise ApiError(
                400, f"The scores of {count:,} echoed tokens are more than this server sends at once: ask for at most "
                f"{limits.max_echoed:,}.", param="echo", code="invalid_value",
            )  # fmt: skip
        begin_of_text = len(model.engine.tokenizer.begin_of_text)
        return prompts, sampling, [begin_of_text if isinstance(one, str) else 0 for one in given]

    return await begin(shelf, request, prepare, "cmpl")


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts one by one. A list of numbers is one prompt."""
    prompt = "" if request.prompt is None else request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(one, int) for one in prompt):
        return [[one for one in prompt if isinstance(one, int)]]
    return [one for one in prompt if not isinstance(one, int)]


class _Echo:
    """The prompt's own text and scores, which come before the first piece of each of its choices."""

    def __init__(self, asked: Asked, is_wanted: bool) -> None:
        self.asked, self.is_wanted = asked, is_wanted
        self.scores: dict[int, tuple[TokenScore, ...]] = {}
        self.texts: dict[int, str] = {}
        self.begun: set[int] = set()

    def first(self, choice: int) -> tuple[str, tuple[TokenScore, ...]]:
        """Text and scores to put before a piece."""
        if not self.is_wanted or choice in self.begun:
            return "", ()
        self.begun.add(choice)
        prompt = choice // self.asked.sampling.choices
        scores = self.scores.get(prompt, ())[self.asked.hidden[prompt] :]
        start = scores[0].offset if scores else 0
        return self.text(prompt), tuple(replace(score, offset=score.offset - start) for score in scores)

    def text(self, prompt: int) -> str:
        if prompt not in self.texts:
            self.texts[prompt] = self._decode(self.asked.prompts[prompt][self.asked.hidden[prompt] :])
        return self.texts[prompt]

    def _decode(self, ids: list[int]) -> str:
        return self.asked.model.engine.tokenizer.decode(ids)

    def before(self, choice: int) -> int:
        """Characters of the prompt, by which the places of the answer's tokens are shifted."""
        return len(self.text(choice // self.asked.sampling.choices)) if self.is_wanted else 0


def _completion_logprobs(
    asked: Asked, echoed: Sequence[TokenScore], made: Sequence[TokenScore], before: int
) -> CompletionLogprobs | None:
    if asked.sampling.logprobs is None:
        return None
    tokenizer = asked.model.engine.tokenizer
    scores = [*echoed, *made]
    return CompletionLogprobs(
        tokens=[score.text for score in scores],
        token_logprobs=[score.logprob for score in scores],
        top_logprobs=None
        if asked.sampling.logprobs == 0
        else [
            None if score.logprob is None else {token_text(tokenizer, token): value for token, value in score.top}
            for score in scores
        ],
        text_offset=[score.offset for score in echoed] + [before + score.offset for score in made],
    )


async def completion(asked: Asked, echo: bool) -> Completion:
    """The whole answer."""
    prefix = _Echo(asked, echo)
    whole = await asked.whole(prefix.scores)
    choices = []
    for piece in whole:
        before, echoed = prefix.first(piece.choice)
        logprobs = _completion_logprobs(asked, echoed, piece.tokens, len(before))
        choices.append(
            CompletionChoice(
                index=piece.choice, text=before + piece.text, logprobs=logprobs, finish_reason=piece.finish
            )
        )
    return Completion(**asked.heading, choices=choices, usage=asked.usage(sum(piece.num_tokens for piece in whole)))


async def completion_events(asked: Asked, echo: bool, wants_usage: bool) -> AsyncIterator[bytes]:
    """The answer as it is written."""
    prefix = _Echo(asked, echo)
    counts = [0] * asked.num_choices
    async with aclosing(asked.pieces()) as pieces:
        async for piece in pieces:
            if isinstance(piece, PromptScores):
                prefix.scores[piece.prompt] = piece.tokens
                continue
            before, echoed = prefix.first(piece.choice)
            logprobs = _completion_logprobs(asked, echoed, piece.tokens, prefix.before(piece.choice))
            choice = CompletionChoice(
                index=piece.choice, text=before + piece.text, logprobs=logprobs, finish_reason=piece.finish
            )
            counts[piece.choice] = piece.num_tokens
            yield event_line(Completion(**asked.heading, choices=[choice], usage=None))
    if wants_usage:
        yield event_line(Completion(**asked.heading, choices=[], usage=asked.usage(sum(counts))))
    yield event_line("[DONE]")


# ---------------------------------------------------------------------------------------------------------------- chat


async def begin_chat(shelf: Shelf, request: ChatRequest, limits: AnswerLimits) -> Asked:
    def prepare(model: ServedModel) -> Prepared:
        if model.template is None:
            raise ApiError(
                400, f"{model.choice.name} has no chat template, so it cannot chat: use /v1/completions.",
                param="model", code="model_not_supported",
            )  # fmt: skip
        messages = [{"role": message.role, "content": message.text} for message in request.messages]
        model.engine.check_length(sum(len(message["content"]) for message in messages))
        prompt = model.template.encode(messages)
        most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        room = max(1, model.engine.max_positions - len(prompt))
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        return [prompt], AnswerSampling(**_sampling(request, limits, most, room), logprobs=logprobs), [0]

    return await begin(shelf, request, prepare, "chatcmpl")


def _chat_logprobs(asked: Asked, scores: Sequence[TokenScore]) -> ChatLogprobs | None:
    if asked.sampling.logprobs is None:
        return None
    tokenizer = asked.model.engine.tokenizer

    def named(token: int, text: str, logprob: float) -> dict[str, Any]:
        is_text = text == tokenizer.decode([token])
        return {"token": text, "bytes": list(text.encode()) if is_text else None, "logprob": logprob}

    return ChatLogprobs(
        content=[
            TokenLogprob(
                **named(score.id, score.text, score.logprob or 0.0),
                top_logprobs=[TopLogprob(**named(id_, token_text(tokenizer, id_), value)) for id_, value in score.top],
            )
            for score in scores
        ]
    )


async def chat(asked: Asked) -> ChatCompletion:
    """The whole answer."""
    whole = await asked.whole({})
    choices = [
        ChatChoice(
            index=piece.choice,
            message=ChatMessage(content=piece.text),
            logprobs=_chat_logprobs(asked, piece.tokens),
            finish_reason=piece.finish or "",
        )
        for piece in whole
    ]
    return ChatCompletion(**asked.heading, choices=choices, usage=asked.usage(sum(piece.num_tokens for piece in whole)))


async def chat_events(asked: Asked, wants_usage: bool) -> AsyncIterator[bytes]:
    """The answer as it is written. The first event of every choice names the role."""
    counts = [0] * asked.num_choices
    for index in range(asked.num_choices):
        first = DeltaChoice(index=index, delta=Delta(role="assistant", content=""), logprobs=None, finish_reason=None)
        yield event_line(ChatChunk(**asked.heading, choices=[first]))
    async with aclosing(asked.pieces()) as pieces:
        async for piece in pieces:
            if isinstance(piece, Piece):
                counts[piece.choice] = piece.num_tokens
                choice = DeltaChoice(
                    index=piece.choice,
                    delta=Delta(content=piece.text),
                    logprobs=_chat_logprobs(asked, piece.tokens),
                    finish_reason=piece.finish,
                )
                yield event_line(ChatChunk(**asked.heading, choices=[choice]))
    if wants_usage:
        yield event_line(ChatChunk(**asked.heading, choices=[], usage=asked.usage(sum(counts))))
    yield event_line("[DONE]")
