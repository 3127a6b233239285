"""Section "Full model and objective": the whole forward pass and the total loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trc2.config import TRC2Config
from trc2.reference import Weights, under
from trc2.reference.column import column, rms_norm_rows
from trc2.reference.hippocampus import Store, appraise, hippocampal_feedback
from trc2.reference.thalamus import router


@dataclass
class Pass:
    logits: Tensor
    balance: Tensor
    td: Tensor
    prediction: Tensor
    states: Tensor | None
    surprise: Tensor | None


def forward(x: Tensor, weights: Weights, config: TRC2Config, store: Store | None, *, feedback: bool = True) -> Pass:
    """Logits of x (B, T) and all auxiliary losses. `feedback=False` is the cortex-only replay path."""
    hidden = torch.stack([torch.stack([weights["embedding.weight"][token] for token in row]) for row in x])
    zero = torch.zeros((), dtype=hidden.dtype)
    result = Pass(hidden, zero, zero, zero, None, None)
    f_thal: Tensor | None = None
    f_hip: Tensor | None = None
    for index in range(config.num_columns):
        column_weights = under(weights, f"columns.{index}.")
        signals = [signal for signal in (f_thal, f_hip) if signal is not None]
        z = sum(signals[1:], signals[0]) if signals and feedback else None
        hidden, penalty = column(hidden, z, column_weights, config)
        result.balance = result.balance + penalty
        if config.memory and index + 1 == config.num_early_columns:
            result.states = hidden.detach()
            critic = under(weights, "hippocampus.critic.")
            result.td, result.prediction, result.surprise = appraise(
                result.states, critic, discount=config.discount, clip=config.td_clip
            )
            if config.num_late_columns > 0 and feedback:
                assert store is not None
                f_hip = hippocampal_feedback(hidden, store, weights, config)
        if config.thalamus and index + 1 < config.num_columns and feedback:
            report = hidden @ column_weights["layer5.weight"].T
            f_thal = router(
                report, under(weights, "thalamus."), config.thalamic_groups, config.thalamic_inhibition, config.norm_eps
            )
    final = rms_norm_rows(hidden, weights["final_norm.gain"], config.norm_eps)
    result.logits = final @ weights["embedding.weight"].T
    return result


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of −log p(y) over positions whose target is not −100."""
    losses = []
    for b in range(targets.shape[0]):
        for t in range(targets.shape[1]):
            if targets[b, t] != -100:
                losses.append(torch.logsumexp(logits[b, t], dim=0) - logits[b, t, targets[b, t]])
    return torch.stack(losses).mean() if losses else torch.zeros((), dtype=logits.dtype)


def objective(
    x: Tensor,
    targets: Tensor,
    replayed: Tensor | None,
    coefficient: float,
    weights: Weights,
    config: TRC2Config,
    store: Store | None,
) -> Tensor:
    """L = L_LM + λ_router λ_lb Σ A + λ_td L_td + λ_pred L_pred + λ_rep L_rep, replay in a pass of its own."""
    main = forward(x, weights, config, store)
    loss = (
        next_token_loss(main.logits, targets)
        + config.lambda_router * config.lambda_load_balance * main.balance
        + config.lambda_td * main.td
        + config.lambda_predictor * main.prediction
    )
    if replayed is not None:
        again = forward(replayed, weights, config, store, feedback=config.replay_path == "full")
        loss = loss + coefficient * next_token_loss(again.logits[:, :-1], replayed[:, 1:])
    return loss
