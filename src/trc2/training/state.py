"""The state of a run: everything that later steps depend on, and its way to a checkpoint and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from trc2.backbones.registry import build_model, compile_parts
from trc2.config import RunConfig
from trc2.distributed.group import ALONE, Ranks
from trc2.distributed.sharded import is_divided, own_rows
from trc2.errors import UserError, brief
from trc2.replay.controller import JumpState, ReplaySettings, base_settings, boosted, initial_settings, observe_loss
from trc2.runs.checkpoint import Checkpoint, load_state, pack_optimizer, unpack_optimizer
from trc2.strategies import build_strategy
from trc2.system.precision import choose_dtype, loss_scaler
from trc2.system.rng import keyed_generator, restore_rng, rng_state, rng_tensors, rng_unchanged
from trc2.training.guards import check_ranks_agree
from trc2.training.optimizer import build_optimizer
from trc2.training.parallel import build_parallel


@dataclass
class Progress:
    """Everything besides tensors that an exact resume needs."""

    step: int = 0
    nonfinite_streak: int = 0
    gap_average: float = 0.0
    integral: float = 0.0
    loss_mean: float = 0.0
    boost: float = 0.0
    train_seconds: float = 0.0
    total_seconds: float = 0.0
    interpolation: float = 0.0  # α, if the weights were interpolated with those of the parent after the end
    boundary_step: int = 0  # the last step after which a task was brought to its end


class RunState:
    """Model, optimizer, scaler and strategy, the progress, and the decisions of the controller. No observers."""

    def __init__(
        self, config: RunConfig, device: torch.device, ranks: Ranks = ALONE, *, will_restore: bool = False
    ) -> None:
        """`will_restore`: the weights come from a checkpoint, so they are not initialised."""
        self.device, self.ranks, self.seed = device, ranks, config.train.seed
        self.dtype = choose_dtype(config.train.precision, device)
        rng = None if will_restore else keyed_generator("weights", config.train.seed)
        self.model = build_model(config.model, rng).train()
        self.model.ranks = ranks
        if config.output.compile:
            compile_parts(self.model)
        self.model.trunk.recompute = config.output.recompute
        self.parallel = build_parallel(self.model, ranks, config.output.parallel, self.dtype, device)
        self.optimizer = build_optimizer(self.model, config.train)
        self.scaler = loss_scaler(device, self.dtype)
        self.strategy = build_strategy(config.strategy, self.model)
        self.strategy.gradients_of = self.parallel.gradients_of
        self.model.more_losses = self.strategy.losses
        self.progress = Progress()
        self.control, self.control_post = config.control, dict[str, float]()  # P_post of every task that has ended
        self.asked = initial_settings(config.control, base_settings(config.model))
        self.apply(self.asked)

    @contextmanager
    def micro_step(self, number: int, *, is_last: bool) -> Iterator[None]:
        """Context of forward and backward of the micro-batch with this number in the step.

        Dropout masks depend on (seed, step, number), not on the rank.
        """
        has_masks = self.model.config.dropout > 0
        with rng_unchanged() if has_masks else nullcontext(), self.parallel.micro_step(is_last):
            if has_masks:
                torch.manual_seed(keyed_generator("dropout", self.seed, self.progress.step, number).initial_seed())
            yield

    def observe_loss(self, loss: float) -> dict[str, float]:
        """Increase replay from the next step on if L_LM jumped.

        The running mean is updated even if jump_gain is 0: a continued run may enable it.
        """
        if not math.isfinite(loss):
            return {}
        jump = observe_loss(self.control, JumpState(self.progress.loss_mean, self.progress.boost), loss)
        self.progress.loss_mean, self.progress.boost = jump.loss_mean, jump.boost
        if self.control.jump_gain == 0.0 or self.control.mode == "off":
            return {}
        self.apply(self.asked)
        return {"replay/boost": jump.boost}

    def apply(self, asked: ReplaySettings) -> None:
        """Replay with these λ_rep, B_R and ρ_long from the next step on, increased by the boost of a loss jump."""
        self.asked, settings = asked, boosted(self.control, asked, self.progress.boost)
        if self.model.replay is not None:
            self.model.replay.set_strength(
                settings.coefficient, settings.batch_size, settings.long_fraction, settings.share
            )

    def check_ranks_agree(self) -> None:
        """Fail unless all ranks hold the same weights, memory, stores, optimizer and strategy."""
        others = {**pack_optimizer(self.optimizer), **self.strategy.tensors}
        check_ranks_agree(self.ranks, self.model, others)

    def to_checkpoint(self, run: dict[str, Any]) -> Checkpoint:
        """The current state. `run` says to which run it belongs. The tensors are views: copy them before training."""
        tensors = {f"model.{name}": tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        tensors |= pack_optimizer(self.optimizer)
        tensors |= {f"strategy.{name}": tensor for name, tensor in self.strategy.tensors.items()}
        tensors |= rng_tensors()
        state = {
            "progress": asdict(self.progress),
            "control_post": dict(self.control_post),
            "asked": asdict(self.asked),
            "scaler": self.scaler.state_dict(),
            "rng": rng_state(),
        }
        rows = {name: own_rows(tensor) for name, tensor in tensors.items() if is_divided(tensor)}
        whole = {name: tensor for name, tensor in tensors.items() if name not in rows}
        return Checkpoint(self.progress.step, whole, state, run, rows)

    def restore_weights(self, checkpoint: Checkpoint) -> None:
        """Restore weights and optimizer of an earlier checkpoint. Stores, controller, strategy and clock stay."""
        checkpoint = replace(checkpoint, tensors=self.parallel.divide(checkpoint.tensors, self.optimizer))
        stay = ("model.replay.", "model.clock.")
        now = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        kept = {name: tensor.clone() for name, tensor in now.items() if name.startswith(stay)}
        # The checkpoint may be of a parent with other replay settings, so its stores are not used.
        earlier = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(stay)}
        load_state(self.model, replace(checkpoint, tensors=earlier | kept))
        unpack_optimizer(self.optimizer, checkpoint.tensors)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a checkpoint, which may be of another number of ranks."""
        checkpoint = replace(checkpoint, tensors=self.parallel.divide(checkpoint.tensors, self.optimizer))
        load_state(self.model, checkpoint)
        try:
            unpack_optimizer(self.optimizer, checkpoint.tensors)
            self.strategy.restore(checkpoint.part("strategy"))
            restore_rng(checkpoint.tensors, checkpoint.state["rng"])
            self.progress = Progress(**checkpoint.state["progress"])
            if not all(type(value) in (int, float) for value in asdict(self.progress).values()):
                raise TypeError("its progress is not made of numbers")
            self.control_post = dict(checkpoint.state["control_post"])
            self.asked = ReplaySettings(**checkpoint.state["asked"])
            if self.scaler.is_enabled():
                self.scaler.load_state_dict(checkpoint.state["scaler"])
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{checkpoint.name} holds a state that this version cannot take ({type(error).__name__}: "
                f"{brief(error)}): resume it with the version that saved it."
            ) from error
