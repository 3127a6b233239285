from __future__ import annotations

import math

import pytest

from trc2.metrics.language import Tally
from trc2.metrics.text import text_scores


def test_a_uniform_guess_over_256_bytes_costs_eight_bits() -> None:
    tally = Tally(nll=10 * math.log(256), tokens=10, correct=5, sequences=2, exact=1)
    metrics = tally.metrics(bytes_per_token=1.0)
    assert metrics["perplexity"] == pytest.approx(256)
    assert metrics["bits_per_byte"] == pytest.approx(8)
    assert metrics["token_accuracy"] == 0.5
    assert metrics["exact_match"] == 0.5


def test_tallies_of_parts_add_up() -> None:
    parts = [Tally(1.0, 2, 1, 1, 0), Tally(3.0, 4, 2, 1, 1)]
    assert parts[0] + parts[1] == Tally(4.0, 6, 3, 2, 1)


@pytest.mark.parametrize(("loss", "expected"), [(1e6, math.inf), (math.inf, math.inf), (709.0, math.exp(709.0))])
def test_a_loss_beyond_all_numbers_is_an_infinite_perplexity(loss: float, expected: float) -> None:
    assert Tally(nll=loss, tokens=1).metrics(1.0)["perplexity"] == expected


def test_a_loss_that_is_no_number_gives_no_perplexity() -> None:
    metrics = Tally(nll=math.nan, tokens=1).metrics(1.0)
    assert all(math.isnan(metrics[name]) for name in ("loss", "perplexity", "bits_per_byte"))


def test_equal_texts_score_full_marks_and_unrelated_ones_none() -> None:
    text = ["the quick brown fox jumps over the lazy dog"]
    same, other = text_scores(text, text), text_scores(["zzz qqq"], text)
    assert (same["bleu"], same["chrf"], same["rouge_l"]) == (pytest.approx(100), pytest.approx(100), 1.0)
    assert other["rouge_l"] == 0.0
    assert other["bleu"] < 1.0
    assert text_scores([], []) == {"bleu": 0.0, "chrf": 0.0, "rouge_l": 0.0}
