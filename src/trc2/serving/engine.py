"""One version of a model in memory: it answers many requests at once, token by token, on a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.errors import UserError, sentence_of
from trc2.generate.sampling import Sampling, check_finite, lay_out_for_decoding, sample
from trc2.nn.decoding import Decoding
from trc2.serving.text import GrowingText, token_offsets, token_text
from trc2.stream.tokenizer import Tokenizer
from trc2.system.rng import keyed_generator

CHARACTERS_OF_TOKEN = 100  # more than tokens of any text have on average
SCORED_AT_ONCE = 256  # tokens of a prompt whose scores of the whole vocabulary are in memory at once
Finish = Literal["stop", "length"]


class EngineClosed(UserError):
    """The engine accepts no more requests: another version has taken its place."""


@dataclass(frozen=True)
class AnswerSampling(Sampling):
    """How an answer is drawn. `logprobs` is how many of the likeliest tokens are named. None names no scores at all."""

    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    choices: int = 1
    scores_prompt: bool = False


@dataclass(frozen=True)
class TokenScore:
    """A token with its log-probability, and the likeliest tokens at its place. A prompt's first token has no score."""

    id: int
    text: str
    offset: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """What one choice gained: text that is certain now, and its tokens if they are wanted. The last has `finish`."""

    choice: int
    text: str
    tokens: tuple[TokenScore, ...] = ()
    finish: Finish | None = None
    num_tokens: int = 0  # of this choice so far


@dataclass(frozen=True)
class PromptScores:
    """The scores of a prompt's own tokens."""

    prompt: int
    tokens: tuple[TokenScore, ...]


@dataclass(frozen=True)
class Failure:
    """The request ends without an answer, for this reason."""

    sentence: str


Event = Piece | PromptScores | Failure


@dataclass
class Ticket:
    """A request inside the engine. `deliver` is called on the engine's thread, in order."""

    prompts: tuple[tuple[int, ...], ...]
    sampling: AnswerSampling
    deliver: Callable[[Event], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Forget the request. Its rows leave before the next token."""
        self.is_cancelled = True


@dataclass
class _Row:
    """One choice that is being written."""

    ticket: Ticket
    choice: int
    limit: int
    rng: torch.Generator
    text: GrowingText
    ahead: int = 0
    offset: int = 0  # characters before the next token
    unsent: list[TokenScore] = field(default_factory=list)


@dataclass
class _Batch:
    """Rows that run together, and the state of their decoding."""

    decoding: Decoding
    rows: list[_Row]

    def keep(self, places: Sequence[int], device: torch.device) -> None:
        if len(places) < len(self.rows):
            self.decoding.reorder(torch.tensor(places, device=device))
            self.decoding.drop_padding()
            self.rows = [self.rows[place] for place in places]


class Engine:
    """One version of a model. Its weights never change, so no state in it can be of another version.

    A prompt runs alone, as in `trc2 generate`. Its rows then join the batch, and leave it between two tokens.
    """

    def __init__(self, net: Backbone, tokenizer: Tokenizer, *, name: str = "model", max_rows: int = 8) -> None:
        self.net, self.tokenizer, self.name, self.max_rows = net.eval(), tokenizer, name, max_rows
        lay_out_for_decoding(net)
        self.device = net.get_input_embeddings().weight.device
        self.tokens_made = 0
        self.largest_batch = 0
        self._waiting: deque[tuple[Ticket, int]] = deque()  # a request and the number of one of its prompts
        self._batches: list[_Batch] = []
        self._is_closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"engine {name}", daemon=True)
        self._thread.start()

    @property
    def max_positions(self) -> int:
        return self.net.config.max_positions

    @property
    def num_rows(self) -> int:
        """Choices that are being written now."""
        return sum(len(batch.rows) for batch in self._batches)

    @property
    def num_waiting(self) -> int:
        """Prompts that have not begun."""
        return len(self._waiting)

    def check_length(self, characters: int) -> None:
        """Reject text that cannot fit before it is divided into tokens, which takes seconds for millions of them."""
        if characters > CHARACTERS_OF_TOKEN * self.max_positions:
            raise UserError(
                f"The prompt has {characters} characters, but the model has {self.max_positions} positions: shorten it."
            )

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, as `trc2 generate` makes them."""
        self.check_length(len(text))
        begin = self.tokenizer.begin_of_text
        return [*begin, *self.tokenizer.encode_batch([text])[0]] or [self.tokenizer.end_of_text]

    def submit(
        self, prompts: Sequence[Sequence[int]], sampling: AnswerSampling, deliver: Callable[[Event], None]
    ) -> Ticket:
        """Begin a request. Choice `i` of prompt `p` has the number `p * choices + i`."""
        for prompt in prompts:
            self.check_prompt(prompt)
        if not 1 <= sampling.choices <= self.max_rows:
            raise UserError(f"n={sampling.choices} choices are not possible: ask for 1 to {self.max_rows}.")
        ticket = Ticket(tuple(map(tuple, prompts)), sampling, deliver)
        with self._wake:
            if self._is_closing:
                raise EngineClosed(f"{self.name} is being put away: ask again.")
            self._waiting.extend((ticket, number) for number in range(len(ticket.prompts)))
            self._wake.notify()
        return ticket

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Reject what the network cannot run."""
        if not prompt:
            raise UserError("The prompt has no tokens: give at least one.")
        if len(prompt) > self.max_positions:
            raise UserError(
                f"The prompt has {len(prompt)} tokens, but the model has {self.max_positions} positions: shorten it."
            )
        vocabulary = self.net.config.vocab_size
        wrong = next((token for token in prompt if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise UserError(f"The prompt has the token id {wrong}: ids are 0 to {vocabulary - 1}.")

    def close(self) -> None:
        """Finish what has begun, then end the thread. Requests that come later are refused."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of the thread, after `close`. Returns whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # ------------------------------------------------------------------------------------------------- on the thread

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._waiting or self._batches or self._is_closing):
                    self._wake.wait()
                if self._is_closing and not self._waiting and not self._batches:
                    return
                next_prompt = self._next_prompt()
            if next_prompt is not None:
                ticket, number = next_prompt
                self._guarded([ticket], partial(self._begin, ticket, number))
            for batch in list(self._batches):
                self._guarded([row.ticket for row in batch.rows], partial(self._step, batch), batch)

    def _next_prompt(self) -> tuple[Ticket, int] | None:
        """The next prompt, if there is room for its choices. One for each token of the others, so that they go on."""
        if any(ticket.is_cancelled for ticket, _ in self._waiting):
            self._waiting = deque(waiting for waiting in self._waiting if not waiting[0].is_cancelled)
        if self._waiting and self.num_rows + self._waiting[0][0].sampling.choices <= self.max_rows:
            return self._waiting.popleft()
        return None

    def _guarded(self, tickets: list[Ticket], work: Callable[[], None], batch: _Batch | None = None) -> None:
        """An error ends the requests that it concerns, and the engine goes on."""
        try:
            with torch.inference_mode():
                work()
        except Exception as error:
            if batch is not None and batch in self._batches:
                self._batches.remove(batch)
            sentence = sentence_of(error) or f"The model failed ({type(error).__name__}): ask again."
            for ticket in {id(ticket): ticket for ticket in tickets}.values():
                if not ticket.is_cancelled:
                    ticket.cancel()
                    with suppress(Exception):  # the listener may be what failed
                        ticket.deliver(Failure(sentence))

    def _begin(self, ticket: Ticket, number: int) -> None:
        """Run a prompt, and let its rows join the batch."""
        prompt, sampling = list(ticket.prompts[number]), ticket.sampling
        decoding = self.net.start_decoding()
        logits = self._run_prompt(ticket, number, prompt, decoding)
        limit = min(sampling.max_tokens, self.max_positions - len(prompt))
        rows = []
        for choice in range(sampling.choices):
            key = (sampling.seed,) if choice == 0 else (sampling.seed, choice)  # the first is that of `trc2 generate`
            row = _Row(
                ticket, number * sampling.choices + choice, limit, keyed_generator("generate", *key),
                GrowingText(self.tokenizer, sampling.stop),
            )  # fmt: skip
            if limit == 0:
                self._send(row, "", "length")
            elif self._advance(row, logits):
                rows.append(row)
        if not rows:
            return
        if len(rows) > 1:
            decoding.reorder(torch.zeros(len(rows), dtype=torch.int64, device=self.device))
        batch = _Batch(decoding, rows)
        if self._batches and decoding.can_join:
            self._batches[0].decoding.join(decoding)
            self._batches[0].rows += rows
        else:
            self._batches.append(batch)
        self.largest_batch = max(self.largest_batch, len(self._batches[0].rows))

    def _run_prompt(self, ticket: Ticket, number: int, prompt: list[int], decoding: Decoding) -> Tensor:
        """The scores of the token after the prompt. Delivers those of the prompt's own tokens if they are wanted."""
        ids = torch.tensor([prompt], device=self.device)
        if not ticket.sampling.scores_prompt:
            logits = self.net.decode(ids, decoding, last=1)[0, -1].float().cpu()
            check_finite(logits)
            return logits
        offsets = token_offsets(self.tokenizer, prompt)
        scores = [self._score(prompt[0], None, offsets[0], ticket.sampling)]
        for start in range(0, len(prompt), SCORED_AT_ONCE):
            part = self.net.decode(ids[:, start : start + SCORED_AT_ONCE], decoding)[0].float().cpu()
            check_finite(part)
            following = prompt[start + 1 : start + 1 + len(part)]
            scores += [
                self._score(token, row, offsets[start + 1 + place], ticket.sampling)
                for place, (token, row) in enumerate(zip(following, part, strict=False))
            ]
        ticket.deliver(PromptScores(number, tuple(scores)))
        return part[-1]

    def _step(self, batch: _Batch) -> None:
        """One token for every row."""
        stays = [place for place, row in enumerate(batch.rows) if not row.ticket.is_cancelled]
        if not stays:
            self._batches.remove(batch)
            return
        batch.keep(stays, self.device)
        ahead = torch.tensor([[row.ahead] for row in batch.rows], device=self.device)
        logits = self.net.decode(ahead, batch.decoding, last=1)[:, -1].float().cpu()
        check_finite(logits)
        stays = [place for place, row in enumerate(batch.rows) if self._advance(row, logits[place])]
        if stays:
            batch.keep(stays, self.device)
        else:
            self._batches.remove(batch)

    def _advance(self, row: _Row, logits: Tensor) -> bool:
        """Draw the next token of a row and deliver what it gained. Returns whether the row goes on."""
        sampling = row.ticket.sampling
        token = sample(logits, sampling, row.rng)
        if token == self.tokenizer.end_of_text:
            if sampling.scores_prompt:  # the harness asks for one token and takes the last score for that token's
                row.unsent.append(self._score(token, logits, row.offset, sampling))
            self._send(row, row.text.rest(), "stop")
            return False
        self.tokens_made += 1
        if sampling.logprobs is not None:
            row.unsent.append(self._score(token, logits, row.offset, sampling))
        text = row.text.add(token)
        row.ahead, row.offset = token, row.text.num_whole
        if row.text.is_stopped:
            row.unsent = [score for score in row.unsent if score.offset < row.offset]
            self._send(row, text, "stop")
            return False
        if len(row.text.ids) >= row.limit:
            self._send(row, text + row.text.rest(), "length")
            return False
        if text:
            self._send(row, text, None)
        return True

    def _send(self, row: _Row, text: str, finish: Finish | None) -> None:
        # Tokens of text that is held back wait with it: it may turn out to be a stop sequence.
        end = row.text.shown
        tokens = tuple(score for score in row.unsent if finish is not None or score.offset < end)
        row.unsent = row.unsent[len(tokens) :]
        row.ticket.deliver(Piece(row.choice, text, tokens, finish, len(row.text.ids)))

    def _score(self, token: int, logits: Tensor | None, offset: int, sampling: AnswerSampling) -> TokenScore:
        text = token_text(self.tokenizer, token)
        if logits is None:
            return TokenScore(token, text, offset, None)
        logprobs = logits.log_softmax(dim=-1)
        values, ids = logprobs.topk(min(sampling.logprobs or 0, len(logprobs)))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        return TokenScore(token, text, offset, float(logprobs[token]), top)
