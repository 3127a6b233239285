"""CortexNet: the stateful shell with the paper's calling convention."""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from trc2.config import TRC2Config
from trc2.errors import UserError
from trc2.model.cortex import Cortex, CortexOutput
from trc2.model.hippocampus import Origin, Proposal, WriteReport
from trc2.nn.host import HostState
from trc2.nn.losses import IGNORE_INDEX, cross_entropy_sum, linear_cross_entropy, linear_predict
from trc2.nn.segments import Packed, pack
from trc2.replay.stores import ReplayStores


class Clock(HostState):
    """Which optimizer step and global micro-step comes next: the key of all replay draws."""

    step: Tensor
    micro_step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device="cpu"))
        self.register_buffer("micro_step", torch.zeros((), dtype=torch.int64, device="cpu"))

    def set(self, step: int, micro_step: int) -> None:
        self.step.fill_(step)
        self.micro_step.fill_(micro_step)


@dataclass(frozen=True)
class Prediction:
    """−log p of every target (0 where ignored), and the likeliest token at every position."""

    nll: Float[Tensor, "B T"]
    tokens: Int[Tensor, "B T"]


class CortexNet(nn.Module):
    """TRC² as the paper calls it.

        logits, aux = net(x, targets=y)      # y already shifted: y[t] = x[t+1]; −100 is ignored
        aux["loss"].backward()
        net.flush_pending_write()            # once per optimizer step, before optimizer.step()
        net.update_slow_targets()            # once per optimizer step, after it

    A training forward with targets queues writes and stages replay chunks; only `flush_pending_write` commits them.
    An evaluation forward empties the write queue without committing, and never touches memory or stores.
    """

    def __init__(self, config: TRC2Config, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.cortex = Cortex(config, generator)
        self.replay = _replay_stores(config) if config.replay else None
        self.pending: deque[Proposal] = deque(maxlen=config.max_pending)
        self.clock = Clock()
        self._warned = False
        self.register_state_dict_pre_hook(_warn_about_pending)

    # ------------------------------------------------------------------------------------------------------ forward

    def forward(
        self,
        x: Tensor,
        targets: Tensor | None = None,
        *,
        valid: Tensor | None = None,
        origin: Origin | None = None,
        return_logits: bool = True,
    ) -> tuple[Float[Tensor, "B T V"] | None, dict[str, Tensor]]:
        """Logits and, with targets, the losses; `return_logits=False` never forms a (B, T, V) tensor.

        x, targets and valid are (B, T) and checked here, at the border, rather than by annotation. `valid` marks real
        tokens where rows are padded; `origin` is remembered with every event.
        """
        self._check_input(x, targets, valid)
        is_learning = self.training and targets is not None
        if not self.training:
            self.pending.clear()
        step, micro_step = int(self.clock.step), int(self.clock.micro_step)
        replayed = self._sample_replay(step, micro_step) if is_learning else None
        valid = None if valid is None else valid.bool()
        packed = _pack_with_replay(x, valid, replayed)
        out = self.cortex(packed, origin, step, appraise=targets is not None)

        main = packed.segments[0]
        hidden = out.hidden[: main.stop]
        logits = self.cortex.logits(main.of(hidden)) if return_logits or targets is None else None
        aux: dict[str, Tensor] = {}
        if targets is not None:
            labels = targets if valid is None else targets.masked_fill(~valid, IGNORE_INDEX)
            aux = self._losses(out, hidden, logits, labels.reshape(-1), replayed)
        if is_learning:
            self._queue(out.proposal, x, valid)
        return logits if return_logits else None, aux

    @torch.no_grad()
    def predict(self, x: Tensor, targets: Tensor) -> Prediction:
        """Score the targets and name the likeliest tokens without forming (B, T, V); for evaluation mode."""
        if self.training:
            raise UserError("predict() was called in training mode: call eval() first.")
        self._check_input(x, targets, None)
        self.pending.clear()
        hidden = self.cortex(pack([x]), appraise=False).hidden
        nll, best = linear_predict(hidden, self.cortex.embedding.weight, targets.reshape(-1))
        return Prediction(nll.view(x.shape), best.view(x.shape))

    def _losses(
        self,
        out: CortexOutput,
        hidden: Float[Tensor, "P D"],
        logits: Float[Tensor, "B T V"] | None,
        labels: Int[Tensor, " P"],
        replayed: Int[Tensor, "B_R L_R"] | None,
    ) -> dict[str, Tensor]:
        """L = L_LM + λ_router L_lb + λ_td L_td + λ_pred L_pred + λ_rep L_rep"""
        config = self.config
        num_labels = (labels != IGNORE_INDEX).sum()
        head = self.cortex.embedding.weight
        if logits is None:
            lm_sum = linear_cross_entropy(hidden, head, labels)
        else:
            lm_sum = cross_entropy_sum(logits.flatten(0, 1), labels)
        zero = lm_sum.new_zeros(())
        aux = {
            "loss_lm": lm_sum / num_labels.clamp_min(1),
            "loss_load_balance": config.lambda_load_balance * out.load_balance,
            "loss_td": zero if out.appraisal is None else out.appraisal.loss_td,
            "loss_predictor": zero if out.appraisal is None else out.appraisal.loss_predictor,
            "loss_replay": zero,
        }
        coefficient = 0.0
        if replayed is not None and self.replay is not None:
            next_tokens = replayed[:, 1:].to(labels.device).reshape(-1)
            replay_sum = linear_cross_entropy(out.hidden[hidden.shape[0] :], head, next_tokens)
            aux["loss_replay"] = replay_sum / next_tokens.numel()
            coefficient = float(self.replay.coefficient)
        aux["loss"] = (
            aux["loss_lm"]
            + config.lambda_router * aux["loss_load_balance"]
            + config.lambda_td * aux["loss_td"]
            + config.lambda_predictor * aux["loss_predictor"]
            + coefficient * aux["loss_replay"]
        )
        aux["num_labels"] = num_labels
        return aux

    def _sample_replay(self, step: int, micro_step: int) -> Int[Tensor, "B_R L_R"] | None:
        """Chunks to replay; none where they would weigh nothing."""
        if self.replay is None or float(self.replay.coefficient) == 0.0:
            return None
        return self.replay.sample(step, micro_step)

    def _queue(self, proposal: Proposal | None, x: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None) -> None:
        limit = self.config.max_pending
        staged = 0 if self.replay is None else self.replay.num_staged_batches
        if max(len(self.pending), staged) >= limit and not self._warned:
            self._warned = True
            warnings.warn(
                f"The writes and replay chunks of {limit} micro-batches were never flushed and the oldest are now "
                "dropped: call flush_pending_write() once per optimizer step, before optimizer.step().",
                stacklevel=3,
            )
        if proposal is not None:
            self.pending.append(proposal)
        if self.replay is not None:
            self.replay.stage(x, valid)
            self.replay.keep_staged(limit)
        self.clock.micro_step += 1

    @property
    def _num_staged(self) -> int:
        return 0 if self.replay is None else self.replay.num_staged

    # ------------------------------------------------------------------------------------------------------ step ends

    def flush_pending_write(self) -> WriteReport:
        """Commit queued events and staged replay chunks; once per optimizer step, before `optimizer.step()`."""
        proposals = list(self.pending)
        self.pending.clear()
        if self.replay is not None:
            self.replay.commit(self.replay.take_staged())
        hippocampus = self.cortex.hippocampus
        return WriteReport() if hippocampus is None else hippocampus.commit(proposals)

    def discard_pending_write(self) -> None:
        """Forget what this step queued and staged, e.g. because its gradients were not finite."""
        self.pending.clear()
        if self.replay is not None:
            self.replay.discard_staged()

    def update_slow_targets(self) -> None:
        """Move the slow heads towards the fast ones and end the step; once per step, after `optimizer.step()`."""
        if self.cortex.hippocampus is not None:
            self.cortex.hippocampus.critic.update_slow()
        self.clock.set(int(self.clock.step) + 1, 0)

    def tensors_without_reader(self) -> list[str]:
        """Names of trainable tensors that no loss can reach, see `Cortex.tensors_without_reader`."""
        return [f"cortex.{name}" for name in self.cortex.tensors_without_reader()]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.cortex.embedding

    # ------------------------------------------------------------------------------------------------------ border

    def _check_input(self, x: Tensor, targets: Tensor | None, valid: Tensor | None) -> None:
        config = self.config
        if x.ndim != 2 or x.dtype != torch.int64:
            raise UserError(
                f"x has shape {tuple(x.shape)} and type {x.dtype}: give token ids as int64 of shape (B, T)."
            )
        if targets is not None and targets.dtype != torch.int64:
            raise UserError(f"targets has type {targets.dtype}: give token ids as int64.")
        if x.numel() == 0:
            raise UserError(f"x has shape {tuple(x.shape)}, an empty batch: give at least one sequence of one token.")
        if x.shape[1] > config.max_positions:
            raise UserError(
                f"x has {x.shape[1]} tokens per sequence, more than max_positions={config.max_positions}: "
                "shorten the sequences or build the model with more positions."
            )
        _check_ids("x", x, config.vocab_size)
        for name, other in (("targets", targets), ("valid", valid)):
            if other is not None and other.shape != x.shape:
                raise UserError(f"{name} has shape {tuple(other.shape)}: it must be {tuple(x.shape)}, like x.")
        if targets is not None:
            _check_ids("targets", targets, config.vocab_size, ignored=IGNORE_INDEX)
        if self.training and targets is not None and config.replay and config.replay_chunk_length > x.shape[1]:
            raise UserError(
                f"replay_chunk_length={config.replay_chunk_length} is longer than the {x.shape[1]} tokens of a "
                f"sequence, so no chunk could be stored: choose at most {x.shape[1]}, or replay=False."
            )


def _check_ids(name: str, ids: Tensor, vocab_size: int, ignored: int | None = None) -> None:
    if ids.device.type != "cpu":
        return  # looking would wait for the device in every step
    low, high = int(ids.min()), int(ids.max())
    if ignored is not None and low == ignored:
        low = int(ids.masked_fill(ids == ignored, 0).min())
    if low < 0 or high >= vocab_size:
        wrong = high if high >= vocab_size else low
        raise UserError(
            f"{name} contains token id {wrong}, but vocab_size={vocab_size}: ids must be 0 … {vocab_size - 1}; "
            "use the tokenizer the model was built for."
        )


def _pack_with_replay(x: Tensor, valid: Tensor | None, replayed: Tensor | None) -> Packed:
    """The last token of a replayed chunk is only ever a target, so it is not run."""
    return pack([x] if replayed is None else [x, replayed[:, :-1].to(x.device)], valid)


def _replay_stores(config: TRC2Config) -> ReplayStores:
    return ReplayStores(
        config.replay_recent_chunks,
        config.replay_long_chunks,
        config.replay_chunk_length,
        seed=config.replay_seed,
        coefficient=config.replay_coefficient,
        batch_size=config.replay_batch_size,
        long_fraction=config.replay_long_fraction,
    )


def _warn_about_pending(net: nn.Module, *_: Any) -> None:
    if isinstance(net, CortexNet) and (net.pending or net._num_staged):
        warnings.warn(
            f"state_dict() was taken with {len(net.pending)} pending micro-batches of writes and {net._num_staged} "
            "staged replay chunks, which are not saved: flush them first, at the end of the optimizer step.",
            stacklevel=3,
        )
