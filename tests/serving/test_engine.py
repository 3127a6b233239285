"""Many requests at once give each the answer it would have had alone."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.serving.conftest import WORDS, eventually, held
from tests.test_commands import make_llama
from trc2 import UserError
from trc2.generate.sampling import Sampling, generate_ids, stream_text
from trc2.runs.target import find_target
from trc2.serving.engine import (
    AnswerSampling,
    Engine,
    EngineClosed,
    Event,
    Failure,
    Piece,
    PromptScores,
    Ticket,
    _Batch,
    _Row,
)
from trc2.serving.text import GrowingText


@pytest.fixture
def engine(words_model: Path) -> Iterator[Engine]:
    one = Engine(*find_target(str(words_model)).trained_model(lambda _: None), name="words", max_rows=6)
    yield one
    one.close()
    assert one.join(30)


class Listener:
    """Collects the events of one request."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def all(self, ticket: Ticket) -> list[Event]:
        events: list[Event] = []
        finished = 0
        while finished < len(ticket.prompts) * ticket.sampling.choices:
            events.append(self.events.get(timeout=60))
            if isinstance(events[-1], Failure):
                break
            finished += isinstance(events[-1], Piece) and events[-1].finish is not None
        return events


def texts(events: list[Event], choices: int) -> list[str]:
    pieces = [event for event in events if isinstance(event, Piece)]
    return ["".join(piece.text for piece in pieces if piece.choice == choice) for choice in range(choices)]


def ask(engine: Engine, prompts: list[str], **sampling: object) -> list[str]:
    listener = Listener()
    ids = [engine.encode(prompt) for prompt in prompts]
    ticket = engine.submit(ids, AnswerSampling(**sampling), listener.events.put)  # type: ignore[arg-type]
    return texts(listener.all(ticket), len(prompts) * ticket.sampling.choices)


PROMPTS = ["apple", "saw axe drill", WORDS, "pear plum fig apple pear", "日本語", "x"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_among_others_gets_what_generate_writes(engine: Engine, temperature: float) -> None:
    listeners, tickets = [Listener() for _ in range(12)], []
    with held(engine):
        for number, listener in enumerate(listeners):  # other prompts, seeds and lengths, which join and leave
            settings = AnswerSampling(max_tokens=5 + 3 * (number % 6), temperature=temperature, seed=number)
            prompt = engine.encode(PROMPTS[number % len(PROMPTS)])
            tickets.append(engine.submit([prompt], settings, listener.events.put))
    for number, (listener, ticket) in enumerate(zip(listeners, tickets, strict=True)):
        said = texts(listener.all(ticket), 1)[0]
        sampling = Sampling(5 + 3 * (number % 6), temperature, seed=number)
        prompt = PROMPTS[number % len(PROMPTS)]
        assert said == "".join(stream_text(engine.net, engine.tokenizer, prompt, sampling))
    assert engine.largest_batch > 1


def test_a_model_whose_cache_cannot_be_joined_answers_row_by_row(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    make_llama(tmp_path)
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 4}
    transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, **heads)).save_pretrained(tmp_path)
    engine = Engine(*find_target(str(tmp_path)).trained_model(lambda _: None))
    said = ask(engine, ["apple", "saw axe drill"], max_tokens=12, temperature=0.0)
    engine.close()
    for prompt, text in zip(["apple", "saw axe drill"], said, strict=True):
        alone = stream_text(engine.net, engine.tokenizer, prompt, Sampling(max_tokens=12, temperature=0.0))
        assert text == "".join(alone)


def test_choices_differ_and_repeat_with_their_seed(engine: Engine) -> None:
    first = ask(engine, ["apple"], max_tokens=12, choices=4, seed=3)
    assert len(set(first)) == 4
    assert ask(engine, ["apple"], max_tokens=12, choices=4, seed=3) == first
    assert ask(engine, ["apple"], max_tokens=12, seed=3) == first[:1]


def test_scores_of_prompt_and_answer_are_the_networks_own(engine: Engine) -> None:
    ids = engine.encode("saw axe drill file")
    listener = Listener()
    settings = AnswerSampling(max_tokens=4, temperature=0.0, logprobs=2, scores_prompt=True)
    events = listener.all(engine.submit([ids], settings, listener.events.put))
    prompt = next(event for event in events if isinstance(event, PromptScores)).tokens
    made = [token for event in events if isinstance(event, Piece) for token in event.tokens]
    whole = [*ids, *(token.id for token in made)]
    with torch.no_grad():
        expected = engine.net(torch.tensor([whole]))[0][0].log_softmax(-1)
    assert prompt[0].logprob is None
    for place, token in enumerate([*prompt, *made][1:]):
        assert token.id == whole[place + 1]
        assert token.logprob == pytest.approx(float(expected[place, token.id]), abs=1e-4)
        assert [one for one, _ in token.top] == expected[place].topk(2).indices.tolist()
    alone = generate_ids(engine.net, ids, Sampling(max_tokens=4, temperature=0))
    assert [token.id for token in made] == list(alone)


def test_a_cancelled_request_leaves_and_the_others_go_on(engine: Engine) -> None:
    gone, stays = Listener(), Listener()
    first = engine.submit([engine.encode("apple")] * 3, AnswerSampling(max_tokens=50), gone.events.put)
    second = engine.submit([engine.encode("saw")], AnswerSampling(max_tokens=30, seed=1), stays.events.put)
    gone.events.get(timeout=60)
    first.cancel()
    alone = stream_text(engine.net, engine.tokenizer, "saw", Sampling(max_tokens=30, seed=1))
    assert texts(stays.all(second), 1) == ["".join(alone)]
    assert eventually(lambda: engine.num_rows == 0)


def test_a_broken_step_ends_its_requests_and_the_engine_goes_on(engine: Engine) -> None:
    expected = ask(engine, ["apple"], max_tokens=5, temperature=0.0)
    weight = engine.net.get_input_embeddings().weight
    saved = weight.detach().clone()
    weight.data.fill_(float("nan"))
    listener = Listener()
    events = listener.all(engine.submit([engine.encode("apple")], AnswerSampling(), listener.events.put))
    assert isinstance(events[-1], Failure)
    assert "not finite" in events[-1].sentence
    weight.data.copy_(saved)
    assert ask(engine, ["apple"], max_tokens=5, temperature=0.0) == expected


def test_a_closed_engine_finishes_what_it_began_and_refuses_the_rest(words_model: Path) -> None:
    engine = Engine(*find_target(str(words_model)).trained_model(lambda _: None))
    listener = Listener()
    ticket = engine.submit([engine.encode("apple")], AnswerSampling(max_tokens=20, seed=2), listener.events.put)
    engine.close()
    with pytest.raises(EngineClosed):
        engine.submit([engine.encode("apple")], AnswerSampling(), listener.events.put)
    alone = stream_text(engine.net, engine.tokenizer, "apple", Sampling(max_tokens=20, seed=2))
    assert texts(listener.all(ticket), 1) == ["".join(alone)]
    assert engine.join(30)


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [([], "no tokens"), ([300], "token id 300"), ([1] * 65, "65 tokens, but the model has 64 positions")],
)
def test_a_prompt_that_cannot_run_is_refused(engine: Engine, prompt: list[int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        engine.submit([prompt], AnswerSampling(), lambda _: None)


def test_an_answer_ends_at_the_last_position(engine: Engine) -> None:
    listener = Listener()
    events = listener.all(engine.submit([[1] * 60], AnswerSampling(max_tokens=50, seed=5), listener.events.put))
    last = events[-1]
    assert isinstance(last, Piece)
    assert last.num_tokens <= 4


def test_tokens_of_a_stop_sequence_are_never_named(engine: Engine) -> None:
    """Text "aaab" with the stop "aab": the second and third token are held back although the first is sent."""
    (letter,), (last,) = (engine.tokenizer.encode_batch([one])[0] for one in "ab")
    listener = Listener()
    sampling = AnswerSampling(max_tokens=9, temperature=0.0, logprobs=0, stop=("aab",))
    text = GrowingText(engine.tokenizer, sampling.stop)
    row = _Row(Ticket(((1,),), sampling, listener.events.put), 0, 9, torch.Generator(), text)
    goes_on = []
    for token in (letter, letter, letter, last):
        logits = torch.full((300,), -9.0)
        logits[token] = 9.0
        goes_on.append(engine._advance(row, logits))
    assert goes_on == [True, True, True, False]
    pieces = [listener.events.get_nowait() for _ in range(2)]
    assert [piece.text for piece in pieces if isinstance(piece, Piece)] == ["a", ""]
    assert [token.offset for piece in pieces if isinstance(piece, Piece) for token in piece.tokens] == [0]


def test_rows_leave_a_batch_on_the_device_of_its_state(engine: Engine) -> None:
    decoding = engine.net.start_decoding()
    for state in decoding.states:
        state.tensors["any"] = torch.zeros(2, 3, device="meta")
    listener = Listener()
    row = _Row(
        Ticket(((1,),), AnswerSampling(), listener.events.put), 0, 9, torch.Generator(), GrowingText(engine.tokenizer)
    )
    batch = _Batch(decoding, [row, row])
    decoding.drop_padding = lambda: None  # it reads values, which this device does not have
    batch.keep([1], torch.device("meta"))
    assert {tuple(state.tensors["any"].shape) for state in decoding.states} == {(1, 3)}
    assert len(batch.rows) == 1


def test_the_end_of_the_text_has_a_score_where_the_prompt_has(engine: Engine) -> None:
    """A program that scores texts asks for one token more, and cuts the last score off."""
    logits = torch.full((300,), -9.0)
    logits[engine.tokenizer.end_of_text] = 9.0
    for scores_prompt in (False, True):
        listener = Listener()
        sampling = AnswerSampling(max_tokens=1, temperature=0.0, logprobs=1, scores_prompt=scores_prompt)
        text = GrowingText(engine.tokenizer)
        row = _Row(Ticket(((1,),), sampling, listener.events.put), 0, 1, torch.Generator(), text)
        assert not engine._advance(row, logits)
        piece = listener.events.get_nowait()
        assert isinstance(piece, Piece)
        assert [token.id for token in piece.tokens] == [engine.tokenizer.end_of_text] * scores_prompt
        assert (piece.text, piece.finish, piece.num_tokens) == ("", "stop", 0)
