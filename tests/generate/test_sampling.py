"""Sampling and streaming."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import excited, tiny_config
from trc2 import CortexNet, UserError
from trc2.backbones.saved import save_model
from trc2.generate.sampling import Sampling, generate_ids, lay_out_for_decoding, sample, stream_text
from trc2.stream.tokenizer import train_bpe


def net(**changes: object) -> CortexNet:
    return excited(CortexNet(tiny_config(vocab_size=300, replay=False, **changes)))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20), st.floats(0.05, 1.0), st.floats(0.1, 3.0))
def test_a_sample_comes_from_the_smallest_set_that_holds_top_p(
    scores: list[float], top_p: float, temperature: float
) -> None:
    logits = torch.tensor(scores, dtype=torch.float64)
    probabilities = (logits / temperature).softmax(0)
    token = sample(logits, Sampling(temperature=temperature, top_p=top_p), torch.Generator().manual_seed(0))
    better = probabilities[probabilities > probabilities[token]].sum()
    assert float(better) < top_p + 1e-9


def test_ids_follow_the_uncached_network() -> None:
    model = net().eval()
    made = list(generate_ids(model, [3, 4], Sampling(max_tokens=10, temperature=0)))
    ids = [3, 4]
    for token in made:
        assert token == int(model(torch.tensor([ids]))[0][0, -1].argmax())
        ids.append(token)
    assert len(made) == 10


def test_it_stops_at_the_last_position_and_at_the_end_token() -> None:
    model = net(max_positions=8)
    assert len(list(generate_ids(model, [1, 2], Sampling(max_tokens=50, temperature=0)))) == 6
    first = next(iter(generate_ids(model, [1, 2], Sampling(max_tokens=5, temperature=0))))
    ended = generate_ids(model, [1, 2], Sampling(max_tokens=5, temperature=0), end=first)
    assert list(ended) == []


def test_streamed_pieces_are_whole_characters_and_add_up() -> None:
    tokenizer = train_bpe(["häuser übermäßig größer — 日本語 " * 5], 300)
    model = net()
    with torch.no_grad():
        model.cortex.embedding.weight.normal_(generator=torch.Generator().manual_seed(3))
    sampling = Sampling(max_tokens=40, seed=4)
    pieces = list(stream_text(model, tokenizer, "日", sampling))
    ids = list(generate_ids(model, tokenizer.encode_batch(["日"])[0], sampling, end=tokenizer.end_of_text))
    assert "".join(pieces) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_p": math.nan}, "top_p=nan"),
    ],
)
def test_bad_options_are_told(options: dict[str, float], told: str) -> None:
    with pytest.raises(UserError, match=told):
        next(iter(generate_ids(net(), [1], Sampling(1, **options))))  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_broken_model_is_told(odd: float, temperature: float) -> None:
    model = net()
    with torch.no_grad():
        model.cortex.embedding.weight[5] = odd
    with pytest.raises(UserError, match="are not finite: it is broken"):
        next(iter(generate_ids(model, [1], Sampling(max_tokens=1, temperature=temperature))))


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-40, 1e-30, 1e-15, 1e300])
def test_any_temperature_gives_a_token(temperature: float) -> None:
    logits = torch.tensor([0.0, 20.0, 1.0])
    token = sample(logits, Sampling(temperature=temperature), torch.Generator().manual_seed(0))
    assert token == 1 if temperature < 1 else token in (0, 1, 2)


def test_tokens_that_the_tokenizer_does_not_know_are_left_out() -> None:
    tokenizer = train_bpe(["abc"], 257)
    model = net()
    with torch.no_grad():
        model.cortex.embedding.weight[tokenizer.vocab_size :] *= 50
    made = list(generate_ids(model, [1], Sampling(max_tokens=20)))
    assert max(made) >= tokenizer.vocab_size
    pieces = list(stream_text(model, tokenizer, "a", Sampling(max_tokens=10**12)))
    assert isinstance("".join(pieces), str)


def test_a_prompt_longer_than_the_model_is_told() -> None:
    with pytest.raises(UserError, match="has 9 tokens, but the model has 8 positions"):
        next(iter(generate_ids(net(max_positions=8), [1] * 9, Sampling(max_tokens=1))))


def test_the_layout_for_decoding_changes_no_text_and_no_file(tmp_path: Path) -> None:
    model = net()
    sampling = Sampling(max_tokens=12, temperature=0.0)
    before = list(generate_ids(model, [1, 2, 3], sampling))
    save_model(model, tmp_path / "before")
    lay_out_for_decoding(model)
    assert list(generate_ids(model, [1, 2, 3], sampling)) == before
    assert model.cortex.columns[0].attention.qkv.weight.stride(0) == 1
    save_model(model, tmp_path / "after")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("before", "after")]
    assert weights[0] == weights[1]


def test_a_top_p_that_float32_rounds_to_zero_leaves_the_likeliest_token() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0])
    assert sample(logits, Sampling(top_p=2.5e-59), torch.Generator().manual_seed(0)) == 1
