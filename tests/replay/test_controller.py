from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from trc2 import RunConfig
from trc2.config import ReplayControlConfig, TRC2Config
from trc2.replay.controller import (
    ControllerState,
    JumpState,
    ReplaySettings,
    base_settings,
    boosted,
    initial_settings,
    observe_loss,
    steer,
)
from trc2.runs.folder import RunFolder
from trc2.training.setup import start_run

PAPER = ReplayControlConfig()
JUMPS = ReplayControlConfig(
    jump_gain=0.5, jump_margin=0.25, jump_decay=0.8, loss_ema_decay=0.9, coefficient_range=(0.0, 0.6)
)
BASE = base_settings(TRC2Config())


def test_one_call_by_hand() -> None:
    current, post = {"a": math.exp(5.0), "b": math.exp(3.0)}, {"a": math.exp(4.0), "b": math.exp(3.5)}
    state, trace = steer(PAPER, BASE, ControllerState(gap_average=0.1, integral=0.2), current, post)
    assert trace.forgetting == pytest.approx(0.5)  # a lost 1, b improved and counts 0
    assert trace.gap == pytest.approx(0.5 / 4.0)  # the geometric mean of the perplexities is exp(4)
    assert state.gap_average == pytest.approx(0.3 * 0.1 + 0.7 * 0.125)
    assert trace.error == pytest.approx(0.1175 - 0.001)
    assert state.integral == pytest.approx(0.2 + 0.1165)
    assert trace.settings.coefficient == pytest.approx(0.15)  # 0.05 + 0.1165 + 0.05 · 0.3165, clipped
    assert trace.settings.batch_size == 6  # round(4 · 1.466)
    assert trace.settings.long_fraction == pytest.approx(0.5 + 4 * 0.1165)


def test_without_forgetting_the_base_values_stay() -> None:
    _, trace = steer(PAPER, BASE, ControllerState(), {"a": 20.0}, {"a": 20.0})
    settings = trace.settings
    assert (settings.coefficient, settings.batch_size, settings.long_fraction) == (0.05, 4, 0.5)


@settings(deadline=None, max_examples=80)
@given(
    average=st.floats(0, 2), integral=st.floats(0, 1), now=st.lists(st.floats(1.01, 1e6), min_size=1, max_size=4),
    then=st.floats(1.01, 1e6),
)  # fmt: skip
def test_settings_stay_in_their_ranges(average: float, integral: float, now: list[float], then: float) -> None:
    current = {str(i): value for i, value in enumerate(now)}
    state, trace = steer(PAPER, BASE, ControllerState(average, integral), current, dict.fromkeys(current, then))
    assert 0.0 <= trace.settings.coefficient <= 0.15
    assert 2 <= trace.settings.batch_size <= 6
    assert 0.5 <= trace.settings.long_fraction <= 1.0
    assert 0.0 <= state.integral <= 1.0
    assert all(math.isfinite(value) for value in trace.metrics().values())


def test_more_forgetting_never_means_less_replay() -> None:
    coefficients = [
        steer(PAPER, BASE, ControllerState(), {"a": 10.0 * factor}, {"a": 10.0})[1].settings.coefficient
        for factor in (1.0, 1.1, 1.5, 3.0, 100.0)
    ]
    assert coefficients == sorted(coefficients)


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0, -1.0])
@pytest.mark.parametrize("where", ["current", "post"])
def test_what_cannot_be_measured_is_never_read_as_nothing_forgotten(odd: float, where: str) -> None:
    perplexities = {"current": {"a": 20.0, "b": 30.0}, "post": {"a": 20.0, "b": 30.0}}
    perplexities[where]["b"] = odd
    state, trace = steer(PAPER, BASE, ControllerState(0.1, 0.2), **perplexities)
    measured = (trace.forgetting, trace.gap, trace.gap_average, trace.error, trace.integral)
    assert all(math.isnan(value) for value in (*measured, trace.settings.coefficient))
    assert (trace.settings.batch_size, trace.settings.long_fraction) == (BASE.batch_size, BASE.long_fraction)
    assert math.isnan(state.gap_average)
    # and the next call, though its perplexities are sound, does not forget that
    _, later = steer(PAPER, BASE, state, {"a": 20.0}, {"a": 20.0})
    assert math.isnan(later.settings.coefficient)


def test_enormous_gains_are_clipped() -> None:
    config = ReplayControlConfig(proportional_gain=1e308, batch_gain=1e308, long_gain=1e308)
    _, trace = steer(config, BASE, ControllerState(), {"a": 1e300}, {"a": 1.0})
    settings = trace.settings
    assert (settings.coefficient, settings.batch_size, settings.long_fraction) == (0.15, 6, 1.0)


def test_off_means_no_replay_and_a_call_without_a_past_is_a_mistake() -> None:
    assert initial_settings(ReplayControlConfig(mode="off"), BASE) == ReplaySettings(0.0, 4, 0.5)
    assert initial_settings(ReplayControlConfig(mode="fixed"), BASE) == BASE
    with pytest.raises(ValueError, match="before any task was past"):
        steer(PAPER, BASE, ControllerState(), {}, {})


def test_a_share_is_steered_as_the_coefficient_is() -> None:
    base = base_settings(TRC2Config(replay_share=0.1))
    current, post = {"a": math.exp(5.0), "b": math.exp(3.0)}, {"a": math.exp(4.0), "b": math.exp(3.5)}
    _, trace = steer(PAPER, base, ControllerState(gap_average=0.1, integral=0.2), current, post)
    assert trace.settings.share == pytest.approx(0.1 + 0.1165 + 0.05 * 0.3165)
    assert trace.metrics()["replay/share"] == trace.settings.share
    assert "replay/coefficient" not in trace.metrics()
    narrow = ReplayControlConfig(share_range=(0.0, 0.15))
    assert steer(narrow, base, ControllerState(0.1, 0.2), current, post)[1].settings.share == 0.15
    assert initial_settings(ReplayControlConfig(mode="off"), base).share == 0.0


def test_a_jump_is_felt_at_once_and_fades() -> None:
    state = observe_loss(JUMPS, JumpState(), 4.0)
    assert state == JumpState(4.0, 0.0)
    state = observe_loss(JUMPS, state, 4.2)  # within the margin
    assert state == JumpState(pytest.approx(4.02), 0.0)
    state = observe_loss(JUMPS, state, 5.27)
    assert state.boost == pytest.approx(0.5 * (5.27 - 4.02 - 0.25))
    assert state.loss_mean == pytest.approx(0.9 * 4.02 + 0.527)
    boost = state.boost
    for _ in range(3):
        state = observe_loss(JUMPS, state, 4.0)
        boost *= 0.8
        assert state.boost == pytest.approx(boost)


def test_a_falling_loss_is_no_jump() -> None:
    state = JumpState()
    for step in range(50):
        state = observe_loss(JUMPS, state, 9.0 - 0.1 * step)
        assert state.boost == 0.0


def test_it_goes_on_top_of_what_feedback_asks_for_within_the_range() -> None:
    asked = ReplaySettings(0.1, 4, 1.0)
    assert boosted(JUMPS, asked, 0.0) is asked
    assert boosted(JUMPS.replace(mode="off"), asked, 0.2) is asked
    assert boosted(JUMPS, asked, 0.2) == ReplaySettings(pytest.approx(0.3), 4, 1.0)
    assert boosted(JUMPS, asked, 9.0).coefficient == 0.6
    assert boosted(JUMPS, ReplaySettings(0.8, 4, 1.0), 0.1).coefficient == 0.8, "a jump never lowers"
    shared = ReplaySettings(0.05, 4, 1.0, share=0.2)
    assert boosted(JUMPS, shared, 0.1) == ReplaySettings(0.05, 4, 1.0, share=pytest.approx(0.3))
    assert boosted(JUMPS, shared, 0.9).share == JUMPS.share_range[1]
    assert boosted(JUMPS.replace(jump_gain=0.0), asked, 0.2) is asked, "nothing would ever let it fade"


def test_the_trainer_feels_every_step_and_writes_it_down(tiny_run: Callable[..., RunConfig]) -> None:
    config = tiny_run(
        eval={"text_sequences": 0},
        control={"mode": "fixed", "jump_gain": 2.0, "jump_margin": 0.0, "loss_ema_decay": 0.5, "every_steps": 4},
    )
    start_run(config, Console(quiet=True))
    train = [record.metrics for record in RunFolder(config.output.folder).records() if record.kind == "train"]
    state, base = JumpState(), config.model.replay_coefficient
    strengths = [base]
    for metrics in train:
        state = observe_loss(config.control, state, metrics["train/loss_lm"])
        assert metrics["replay/boost"] == pytest.approx(state.boost)
        strengths.append(max(base, min(base + state.boost, 0.15)))
    assert [metrics["replay/coefficient"] for metrics in train] == pytest.approx(strengths[1:])
    assert max(strengths) > base, "nothing jumped in this run, so it shows nothing"
