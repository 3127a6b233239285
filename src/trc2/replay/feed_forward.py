"""Replay more at once when the text changes: a jump of the loss is felt before anything is forgotten."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trc2.config import ReplayControlConfig
from trc2.replay.controller import ReplaySettings


@dataclass(frozen=True)
class JumpState:
    """What is remembered between steps: the running mean of the loss, 0 before the first step, and what is added."""

    loss_mean: float = 0.0
    boost: float = 0.0


def observe_loss(config: ReplayControlConfig, state: JumpState, loss: float) -> JumpState:
    """One step with its L_LM, from which no task label is needed.

    j = max(0, L − m − margin)          u ← max(δ u, k_f j)          m ← μ m + (1 − μ) L

    The first loss only sets the mean. The forgetting that feedback waits for comes steps later than the jump.
    """
    if state.loss_mean == 0.0:
        return JumpState(loss)
    jump = max(0.0, loss - state.loss_mean - config.jump_margin)
    boost = max(config.jump_decay * state.boost, config.jump_gain * jump)
    return JumpState(config.loss_ema_decay * state.loss_mean + (1.0 - config.loss_ema_decay) * loss, boost)


def boosted(config: ReplayControlConfig, asked: ReplaySettings, boost: float) -> ReplaySettings:
    """What feedback asked for, with the boost on top, within the controller's ranges: λ_rep + u, or s + u.

    Without a gain there is none: nothing would ever take away what a parent's has left. What is off stays off.
    """
    if boost == 0.0 or config.jump_gain == 0.0 or config.mode == "off":
        return asked
    if asked.share is not None:
        return replace(asked, share=_on_top(asked.share, boost, config.share_range[1]))
    return replace(asked, coefficient=_on_top(asked.coefficient, boost, config.coefficient_range[1]))


def _on_top(asked: float, boost: float, limit: float) -> float:
    """At most the limit, but never less than was asked for: a fixed strength may lie above the range."""
    return max(asked, min(asked + boost, limit))
