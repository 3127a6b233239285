"""The jump of the loss: closed forms, and its place in the trainer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.console import Console

from trc2 import RunConfig
from trc2.config import ReplayControlConfig
from trc2.replay.controller import ReplaySettings
from trc2.replay.feed_forward import JumpState, boosted, observe_loss
from trc2.runs.folder import RunFolder
from trc2.training.setup import start_run

CONFIG = ReplayControlConfig(
    jump_gain=0.5, jump_margin=0.25, jump_decay=0.8, loss_ema_decay=0.9, coefficient_range=(0.0, 0.6)
)


def test_a_jump_is_felt_at_once_and_fades() -> None:
    state = observe_loss(CONFIG, JumpState(), 4.0)
    assert state == JumpState(4.0, 0.0)
    state = observe_loss(CONFIG, state, 4.2)  # within the margin
    assert state == JumpState(pytest.approx(4.02), 0.0)
    state = observe_loss(CONFIG, state, 5.27)
    assert state.boost == pytest.approx(0.5 * (5.27 - 4.02 - 0.25))
    assert state.loss_mean == pytest.approx(0.9 * 4.02 + 0.527)
    boost = state.boost
    for _ in range(3):
        state = observe_loss(CONFIG, state, 4.0)
        boost *= 0.8
        assert state.boost == pytest.approx(boost)


def test_a_falling_loss_is_no_jump() -> None:
    state = JumpState()
    for step in range(50):
        state = observe_loss(CONFIG, state, 9.0 - 0.1 * step)
        assert state.boost == 0.0


def test_it_goes_on_top_of_what_feedback_asks_for_within_the_range() -> None:
    asked = ReplaySettings(0.1, 4, 1.0)
    assert boosted(CONFIG, asked, 0.0) is asked
    assert boosted(CONFIG.replace(mode="off"), asked, 0.2) is asked
    assert boosted(CONFIG, asked, 0.2) == ReplaySettings(pytest.approx(0.3), 4, 1.0)
    assert boosted(CONFIG, asked, 9.0).coefficient == 0.6
    assert boosted(CONFIG, ReplaySettings(0.8, 4, 1.0), 0.1).coefficient == 0.8, "a jump never lowers"
    shared = ReplaySettings(0.05, 4, 1.0, share=0.2)
    assert boosted(CONFIG, shared, 0.1) == ReplaySettings(0.05, 4, 1.0, share=pytest.approx(0.3))
    assert boosted(CONFIG, shared, 0.9).share == CONFIG.share_range[1]
    assert boosted(CONFIG.replace(jump_gain=0.0), asked, 0.2) is asked, "nothing would ever let it fade"


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
