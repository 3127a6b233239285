"""Learning and keeping are two numbers whose sum is the end."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.report.invented import LEARNT, TASKS, invent_run, rewrite
from trc2.report.evidence import PRIMARY, Evidence
from trc2.report.plots.frontier import just_learnt, keeping_and_learning, lost_since, speed_and_retention
from trc2.report.scope import LeftOut, Scope


def test_what_was_learnt_and_what_was_lost_add_up_to_the_end(tmp_path: Path) -> None:
    run = Evidence.of([invent_run(tmp_path / "one", "lab_trc2", forgets=0.3, noise=0.0)]).runs[0]
    learnt, lost = just_learnt(run), lost_since(run)
    assert learnt == pytest.approx(sum(LEARNT.values()) / 3)
    assert lost == pytest.approx(0.3 * sum(1 - math.exp(-steps / 100) for steps in (370, 120)) / 3)
    assert learnt + lost == pytest.approx(PRIMARY.of(run))


def test_an_arm_far_from_the_best_is_named_and_not_drawn(tmp_path: Path) -> None:
    invent_run(tmp_path / "good", "lab_trc2", forgets=0.1)
    with pytest.raises(LeftOut, match="at least two arms"):
        keeping_and_learning(Scope(Evidence.of([tmp_path])))
    invent_run(tmp_path / "fair", "lab_transformer", forgets=0.5)
    assert "Not drawn" not in keeping_and_learning(Scope(Evidence.of([tmp_path]))).caption
    invent_run(tmp_path / "poor", "lab_moe", forgets=5.0)
    assert "Not drawn, as they end more than 1 nat worse than the best: MoE." in (
        keeping_and_learning(Scope(Evidence.of([tmp_path]))).caption
    )


def test_who_did_not_learn_is_drawn_and_beats_nobody(tmp_path: Path) -> None:
    def freeze(metrics: dict[str, float], step: int) -> None:
        metrics.update({f"eval/{task}/perplexity": math.exp(7.25 - 0.05 * bool(step)) for task in TASKS})

    rewrite(invent_run(tmp_path / "frozen", "lab_lora_drs"), freeze)
    invent_run(tmp_path / "slow", "lab_trc2", forgets=0.1)
    alone = speed_and_retention(Scope(Evidence.of([tmp_path])))
    assert "Grey line" not in alone.caption  # one arm that learnt is no frontier
    invent_run(tmp_path / "fast", "lab_transformer", forgets=0.5)
    picture = speed_and_retention(Scope(Evidence.of([tmp_path])))
    assert "Grey line: no arm that learnt its tasks is better in both." in picture.caption
    (line,) = [drawn for drawn in picture.figure.axes[0].lines if drawn.get_drawstyle() == "steps-pre"]
    slow, fast = line.get_ydata()
    assert 0 < slow < fast
    areas = [line.get_ydata()[0] for line in picture.figure.axes[0].lines if len(line.get_ydata()) == 1]
    assert min(areas) < slow  # that of the frozen one, which has a point of its own
