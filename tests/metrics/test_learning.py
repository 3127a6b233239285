from __future__ import annotations

import math

import pytest

from trc2.metrics.forgetting import BLEU, PERPLEXITY, ScoreTable, TaskSpan
from trc2.metrics.learning import LEAST_GAIN, Gain, gain_of, learned, unlearned

STRETCHES = (TaskSpan("c4", 0, 250), TaskSpan("wikitext", 250, 500), TaskSpan("gsm8k", 500, 620))


def table(c4: tuple[float, ...], wikitext: tuple[float, ...], gsm8k: tuple[float, ...]) -> ScoreTable:
    """Perplexities of three tasks before any training and at the three boundaries."""
    scores = {
        step: {"c4": c4[n], "wikitext": wikitext[n], "gsm8k": gsm8k[n]} for n, step in enumerate((0, 250, 500, 620))
    }
    return ScoreTable(PERPLEXITY, STRETCHES, scores)


# Runs of the lab: LoraDRS with a frozen backbone, TRC², the columns alone, and the weakest baseline. Scores just before
# and after a task's own training decide. The others, and LoraDRS's and Mamba's before GSM8K, are only likely ones.
LORA_DRS = table((4200, 549, 552, 563), (4180, 1601, 1511, 1304), (4213, 1900, 1850, 1621))
TRC2 = table((4223, 321, 340, 360), (4150, 782, 172, 190), (4228, 1500, 982, 53))
PLAIN = table((4198, 337, 600, 868), (4184, 811, 175, 1192), (4213, 2700, 2645, 57))
MAMBA = table((4200, 864, 900, 1111), (4180, 1300, 553, 1229), (4213, 2900, 2800, 184))


def test_the_worked_example_of_the_docstring() -> None:
    gain = gain_of(LORA_DRS, STRETCHES[1])
    assert gain == Gain(pytest.approx(math.log(1601 / 1511)), pytest.approx(math.log(4180 / 1511)))
    assert (round(gain.own, 2), round(gain.whole, 2)) == (0.06, 1.02)


def test_a_run_that_keeps_what_it_never_learned_is_recognised() -> None:
    assert learned(LORA_DRS, "c4") is True
    assert unlearned(LORA_DRS) == ["wikitext", "gsm8k"]


@pytest.mark.parametrize("run", [TRC2, PLAIN, MAMBA])
def test_runs_that_learn_are_not_marked(run: ScoreTable) -> None:
    assert unlearned(run) == []
    assert all(learned(run, name) for name in ("c4", "wikitext", "gsm8k"))


def test_a_task_that_was_known_before_it_came_is_not_marked() -> None:
    """Its own training gains nothing, because transfer or replay had already brought it as far as its peers."""
    known = table((4200, 320, 321, 330), (4180, 330, 325, 340), (4213, 1500, 900, 50))
    assert gain_of(known, STRETCHES[1]).own < 0.05  # type: ignore[union-attr]
    assert unlearned(known) == []
    # Its like is the task that gained least, not the one that gained most.
    easy_first = table((4200, 10, 11, 12), (4180, 900, 325, 330), (4213, 1500, 332, 330))
    assert unlearned(easy_first) == []


def test_nothing_learned_at_all_marks_every_task() -> None:
    """Without a learned task there is no standard of comparison, so nothing counts as learned."""
    nothing = table((4200, 4190, 4180, 4180), (4180, 4175, 4170, 4170), (4213, 4210, 4205, 4200))
    assert unlearned(nothing) == ["c4", "wikitext", "gsm8k"]


def test_a_task_that_became_worse_by_its_own_training_is_marked() -> None:
    assert unlearned(table((4200, 300, 320, 330), (4180, 700, 150, 160), (4213, 1800, 1700, 2800))) == ["gsm8k"]
    repaired = table((4200, 300, 320, 330), (4180, 700, 150, 160), (4213, 9000, 90000, 4000))
    assert unlearned(repaired) == ["gsm8k"]  # far better than just before, no better than untrained


@pytest.mark.parametrize(("factor", "expected"), [(0.999, False), (1.001, True)])
def test_the_border_is_where_it_is_said_to_be(factor: float, expected: bool) -> None:
    after = 2000 / math.exp(LEAST_GAIN * factor)
    assert (
        learned(table((4200, 300, 320, 330), (4180, 2000, after, after), (4213, 1500, 900, 50)), "wikitext") is expected
    )
    # Of the known: 0.9 of what C4 gained, ln 8.
    after = 4000 / 8 ** (0.9 * factor)
    known = table((4000, 500, 500, 500), (4000, after * 1.01, after, after), (4000, 900, 900, 50))
    assert learned(known, "wikitext") is expected


@pytest.mark.parametrize("broken", [math.nan, math.inf, 0.0])
def test_a_broken_score_is_not_learned(broken: float) -> None:
    run = table((4200, 300, 320, 330), (4180, 700, broken, 160), (4213, 1500, 900, 50))
    assert unlearned(run) == ["wikitext"]


def test_what_was_not_measured_yet_is_neither() -> None:
    half = ScoreTable(PERPLEXITY, STRETCHES, {step: LORA_DRS.scores[step] for step in (0, 250)})
    assert [learned(half, name) for name in ("c4", "wikitext", "nobody")] == [True, None, None]
    assert unlearned(half) == []
    late = ScoreTable(PERPLEXITY, STRETCHES[1:], {step: LORA_DRS.scores[step] for step in (250, 500)})
    assert unlearned(late) == ["wikitext"]  # without a score of before any training, only its own gain counts


def test_only_perplexity_is_measured_in_nats() -> None:
    with pytest.raises(ValueError, match="not in bleu"):
        learned(ScoreTable(BLEU, STRETCHES, {0: {"c4": 1.0}, 250: {"c4": 2.0}}), "c4")
