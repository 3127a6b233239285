"""The replay controller: measured forgetting in, replay strength out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trc2.config import BackboneConfig, ReplayControlConfig


@dataclass(frozen=True)
class ControllerState:
    """What the controller remembers between calls; both start at 0 and are never reset."""

    gap_average: float = 0.0
    integral: float = 0.0


@dataclass(frozen=True)
class ReplaySettings:
    """λ_rep, B_R and ρ_long; with a share, that and ρ_long."""

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
        return {
            "replay/forgetting": self.forgetting,
            "replay/gap": self.gap,
            "replay/gap_average": self.gap_average,
            "replay/error": self.error,
            "replay/integral": self.integral,
            **self._strength(),
            "replay/long_fraction": self.settings.long_fraction,
        }

    def _strength(self) -> dict[str, float]:
        if self.settings.share is not None:
            return {"replay/share": self.settings.share}
        return {
            "replay/coefficient": self.settings.coefficient,
            "replay/batch_size": float(self.settings.batch_size),
        }


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

    `base` is λ₀, B₀, ρ₀. With a share s₀ instead, s = clip(s₀ + k_p e + k_i I), and B_R follows from it. A perplexity
    that is not finite makes all measured quantities and λ NaN, in this call and all later ones: the caller must check.
    B_R and ρ are then the base values.
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
    more = config.proportional_gain * error + config.integral_gain * integral
    settings = ReplaySettings(
        coefficient=_clip(
            base.coefficient + config.proportional_gain * error + config.integral_gain * integral,
            *config.coefficient_range,
        ),
        batch_size=round(_clip(base.batch_size * (1.0 + config.batch_gain * error), *config.batch_range)),
        long_fraction=_clip(base.long_fraction + config.long_gain * error, 0.0, 1.0),
        share=None if base.share is None else _clip(base.share + more, *config.share_range),
    )
    return ControllerState(average, integral), ControlTrace(forgotten, gap, average, error, integral, settings)


def base_settings(model: BackboneConfig) -> ReplaySettings:
    """λ₀, B₀ and ρ₀, or s₀ and ρ₀: what a model replays with where no controller runs."""
    return ReplaySettings(
        model.replay_coefficient, model.replay_batch_size, model.replay_long_fraction, model.replay_share
    )


def initial_settings(config: ReplayControlConfig, base: ReplaySettings) -> ReplaySettings:
    """Before the first call: the base values, or no replay at all."""
    if config.mode != "off":
        return base
    return replace(base, coefficient=0.0, share=None if base.share is None else 0.0)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _log(perplexity: float) -> float:
    """NaN unless the perplexity is one: log ∞ would pass for a large gap, or for none where it is the reference."""
    return math.log(perplexity) if 0.0 < perplexity < math.inf else math.nan


def _rise(gap: float) -> float:
    """max(0, gap), but NaN where the gap is: Python's max(0, NaN) is 0."""
    return gap if math.isnan(gap) else max(0.0, gap)
