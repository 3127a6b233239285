"""Scores of tasks outside the stream: what is lost of them, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trc2.metrics.lm_eval import Score, falls, with_forgetting

CHANCE = np.random.default_rng(0)


def score(value: float, *, up: bool = True, **documents: float) -> Score:
    return Score("quiz", "acc", value, 0.1, up, documents)


def test_forgetting_is_measured_from_the_best_earlier_value() -> None:
    earlier = [{"lm_eval/quiz/acc": 0.5}, {"eval/fruit/perplexity": 9.0}, {"lm_eval/quiz/acc": 0.75}]
    path = "cl/lm_eval/quiz/acc/forgetting"
    assert with_forgetting(score(0.5), earlier)[path] == 0.25
    assert with_forgetting(score(1.0), earlier)[path] == -0.25
    assert with_forgetting(score(0.5, up=False), earlier)[path] == 0.0
    assert math.isnan(with_forgetting(score(math.nan), earlier)[path])
    assert with_forgetting(score(0.5), []) == {"lm_eval/quiz/acc": 0.5}


def test_a_fall_is_paired_by_document_whatever_their_order() -> None:
    before, after = score(0.5, a=1.0, b=0.0), score(1.0, b=1.0, a=1.0)
    ((_, fall),) = falls([before], [after], CHANCE)
    assert fall.value == -0.5
    assert fall.high == -1.0 - fall.low, "Student's interval of two documents, which is even"
    ((_, other),) = falls([score(0.5, up=False, a=1.0, b=0.0)], [after], CHANCE)
    assert other.value == pytest.approx(0.5)
    assert not list(falls([score(0.5)], [score(0.4)], CHANCE))  # without documents there is no interval
