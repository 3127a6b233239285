"""Intrinsic learning signals: prediction, value and surprise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.config import TRC2Config
from trc2.nn.linear import PlainLinear
from trc2.nn.norm import cosine
from trc2.ops.modes import at_least_float32


@dataclass(frozen=True)
class Appraisal:
    """Losses of the fast heads, and how surprising each token was to the slow ones."""

    loss_td: Float[Tensor, ""]
    loss_predictor: Float[Tensor, ""]
    surprise: Float[Tensor, "B T"]


class Predictor(nn.Module):
    """f_θ: a guess of the next cortical state. Two d×d maps with a SiLU between, no biases."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = PlainLinear(d_model, d_model)
        self.outer = PlainLinear(d_model, d_model)

    def forward(self, states: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.outer(F.silu(self.inner(states)))


class Critic(nn.Module):
    """Fast heads learn by gradient. Slow heads are their moving averages and judge what is surprising.

    c_t = ⟨unit(f(X_t)), unit(X_{t+1})⟩         r_t = max(0, c_fast − c_slow), a constant for the TD loss
    δ_t = clip(r_t + γ V_{t+1} − V_t, ±δ_max)   L_td = ½ mean δ_fast²,  L_pred = mean(1 − c_fast)
    s_1 = 0,  s_t = |δ_slow,t−1|                so that the score of t does not depend on later tokens
    """

    def __init__(self, config: TRC2Config) -> None:
        super().__init__()
        self.discount, self.clip, self.slow_decay = config.discount, config.td_clip, config.slow_heads_decay
        self.predictor = Predictor(config.d_model)
        self.value = PlainLinear(config.d_model, 1)
        self.slow_predictor = Predictor(config.d_model).requires_grad_(False)
        self.slow_value = PlainLinear(config.d_model, 1).requires_grad_(False)

    def forward(self, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Appraisal:
        """Appraise detached cortical states. A transition counts if both of its tokens are real."""
        # A float32 island: the reward is the positive part of a tiny difference, which rounding would bias upwards.
        with torch.autocast(states.device.type, enabled=False):
            return self._appraise(states.to(self.value.weight.dtype), valid)

    def _appraise(self, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Appraisal:
        now, following = states[:, :-1].contiguous(), at_least_float32(states[:, 1:])
        flat = states.flatten(0, 1)  # with three dimensions torch computes one small product per row
        size = torch.linalg.vector_norm(following, dim=-1)
        fast = cosine(at_least_float32(self.predictor(now)), following, size)
        with torch.no_grad():
            slow = cosine(at_least_float32(self.slow_predictor(now)), following, size)
            reward = (fast - slow).clamp_min(0.0)
            slow_residual = self._residual(reward, self.slow_value(flat).view(states.shape[:2]))
        fast_residual = self._residual(reward, self.value(flat).view(states.shape[:2]))
        counted = torch.ones_like(fast) if valid is None else (valid[:, 1:] & valid[:, :-1]).to(fast.dtype)
        transitions = counted.sum().clamp_min(1.0)
        return Appraisal(
            loss_td=0.5 * (fast_residual.square() * counted).sum() / transitions,
            loss_predictor=((1.0 - fast) * counted).sum() / transitions,
            surprise=F.pad(slow_residual.abs() * counted, (1, 0)),
        )

    def _residual(self, reward: Float[Tensor, "B T_1"], values: Float[Tensor, "B T"]) -> Float[Tensor, "B T_1"]:
        value = at_least_float32(values)
        return (reward + self.discount * value[:, 1:] - value[:, :-1]).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def copy_to_slow(self) -> None:
        """Slow heads start as copies of the fast ones."""
        for slow, fast in self._pairs():
            slow.copy_(fast)

    @torch.no_grad()
    def update_slow(self) -> None:
        """θ̄ ← α θ̄ + (1 − α) θ"""
        slow, fast = zip(*self._pairs(), strict=True)
        torch._foreach_lerp_(slow, fast, 1.0 - self.slow_decay)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        slow = [*self.slow_predictor.parameters(), *self.slow_value.parameters()]
        fast = [*self.predictor.parameters(), *self.value.parameters()]
        return list(zip(slow, fast, strict=True))
