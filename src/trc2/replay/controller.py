"""The replay controller: replay strength from measured forgetting, and more of it right after the loss jumps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from trc2.config import BackboneConfig, ReplayControlConfig


@dataclass(frozen=True)
class ControllerState:
    """The state of `steer` between calls. It is never reset."""

    gap_average: float = 0.0
    integral: float = 0.0


@dataclass(frozen=True)
class ReplaySettings:
    """λ_rep, B_R and ρ_long. With a share, that and ρ_long."""

    coefficient: float
    batch_size: int
    long_fraction: float
    share: float | None = None


@dataclass(frozen=True)
class ControlTrace:
    """Every quantity of one controller call, for the log."""

    forgetting: float
    gap: float
    gap_average: float
    error: float
    integral: float
    settings: ReplaySettings

    def metrics(self) -> dict[str, float]:
        values = asdict(self)
        settings = values.pop("settings")
        for unused in ("share",) if self.settings.share is None else ("coefficient", "batch_size"):
            del settings[unused]
        return {f"replay/{name}": float(value) for name, value in (values | settings).items()}


def steer(
    config: ReplayControlConfig,
    base: ReplaySettings,
    state: ControllerState,
    current: Mapping[str, float],
    post: Mapping[str, float],
) -> tuple[ControllerState, ControlTrace]:
    """One call with the control perplexities of all past tasks, now and right after their training.

    f̄ = mean max(0, log P − log P_post)          g = f̄ / max(1, |log P_sel|), P_sel their geometric mean
    g̃ ← (1 − β) g̃ + β g                          e = max(0, g̃ − g_tar),  I ← min(I_max, I + e)
    λ = clip(λ₀ + k_p e + k_i I)                  B_R = clip(round(B₀ (1 + k_B e))),  ρ = clip(ρ₀ + k_ρ e)

    `base` is λ₀, B₀, ρ₀. With a share s₀ instead, s = clip(s₀ + k_p e + k_i I). A perplexity that is not finite makes
    all measured quantities and λ NaN, in this call and all later ones, and leaves B_R and ρ at their base values.
    """
    if not current:
        raise ValueError("the controller was called before any task was past")
    logs = {task: _log(perplexity) for task, perplexity in current.items()}
    forgotten = sum(_rise(value - _log(post[task])) for task, value in logs.items()) / len(logs)
    gap = forgotten / max(1.0, abs(sum(logs.values()) / len(logs)))
    average = (1.0 - config.smoothing) * state.gap_average + config.smoothing * gap
    error = _rise(average - config.target_gap)
    if math.isnan(error):  # nothing was measured
        settings = replace(base, coefficient=math.nan)
        return ControllerState(math.nan, math.nan), ControlTrace(forgotten, gap, average, error, math.nan, settings)
    integral = min(config.integral_limit, state.integral + error)
    proportional, accumulated = config.proportional_gain * error, config.integral_gain * integral
    settings = ReplaySettings(
        coefficient=_clip(base.coefficient + proportional + accumulated, *config.coefficient_range),
        batch_size=round(_clip(base.batch_size * (1.0 + config.batch_gain * error), *config.batch_range)),
        long_fraction=_clip(base.long_fraction + config.long_gain * error, 0.0, 1.0),
        share=None if base.share is None else _clip(base.share + (proportional + accumulated), *config.share_range),
    )
    return ControllerState(average, integral), ControlTrace(forgotten, gap, average, error, integral, settings)


def base_settings(model: BackboneConfig) -> ReplaySettings:
    """λ₀, B₀ and ρ₀, or s₀ and ρ₀: the replay settings of a model without a controller."""
    return ReplaySettings(
        model.replay_coefficient, model.replay_batch_size, model.replay_long_fraction, model.replay_share
    )


def initial_settings(config: ReplayControlConfig, base: ReplaySettings) -> ReplaySettings:
    """Before the first call: the base values, or no replay at all."""
    if config.mode != "off":
        return base
    return replace(base, coefficient=0.0, share=None if base.share is None else 0.0)


@dataclass(frozen=True)
class JumpState:
    """The running mean m of the loss, 0 before the first step, and the boost u."""

    loss_mean: float = 0.0
    boost: float = 0.0


def observe_loss(config: ReplayControlConfig, state: JumpState, loss: float) -> JumpState:
    """Update the boost with the L_LM of one step. A jump of the loss shows new text before anything is forgotten.

    j = max(0, L − m − margin)          u ← max(δ u, k_f j)          m ← μ m + (1 − μ) L

    The first loss only sets the mean.
    """
    if state.loss_mean == 0.0:
        return JumpState(loss)
    jump = max(0.0, loss - state.loss_mean - config.jump_margin)
    boost = max(config.jump_decay * state.boost, config.jump_gain * jump)
    return JumpState(config.loss_ema_decay * state.loss_mean + (1.0 - config.loss_ema_decay) * loss, boost)


def boosted(config: ReplayControlConfig, asked: ReplaySettings, boost: float) -> ReplaySettings:
    """The controller's settings with the boost added, λ_rep + u or s + u, up to the end of the range.

    Without a gain there is no boost, because an inherited one would never decay. Replay that is off stays off. A
    fixed strength above the range is not lowered.
    """
    if boost == 0.0 or config.jump_gain == 0.0 or config.mode == "off":
        return asked
    name = "coefficient" if asked.share is None else "share"
    limit = (config.coefficient_range if asked.share is None else config.share_range)[1]
    strength = getattr(asked, name)
    return replace(asked, **{name: max(strength, min(strength + boost, limit))})


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _log(perplexity: float) -> float:
    """The logarithm, but NaN for infinity: log ∞ would pass for a large gap, or for none in the reference."""
    return math.log(perplexity) if 0.0 < perplexity < math.inf else math.nan


def _rise(gap: float) -> float:
    """max(0, gap), but NaN for NaN: Python's max(0, NaN) is 0."""
    return gap if math.isnan(gap) else max(0.0, gap)
