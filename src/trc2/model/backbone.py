"""The shell every language model here shares: losses, replay, evaluation, decoding, and checks at the border."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from trc2.config.backbone import BackboneConfig
from trc2.errors import UserError
from trc2.model.hippocampus import Origin, WriteReport
from trc2.nn.decoding import Decoding, State
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


@dataclass(frozen=True)
class TrunkOutput:
    """What a pass over packed tokens computed: the state the head reads, and the routers' balance (0 without one)."""

    hidden: Float[Tensor, "P D"]
    load_balance: Float[Tensor, ""]


class Trunk(Protocol):
    """The part of a backbone that its paper describes: packed tokens in, normalised states out, nothing written."""

    embedding: nn.Embedding

    def __call__(self, packed: Packed, *, decoding: Decoding | None = None) -> TrunkOutput: ...

    def new_states(self) -> Sequence[State]: ...


class Backbone(nn.Module):
    """A language model with the paper's calling convention, whatever its trunk.

        logits, aux = net(x, targets=y)      # y already shifted: y[t] = x[t+1]; −100 is ignored
        aux["loss"].backward()
        net.flush_pending_write()            # once per optimizer step, before optimizer.step()
        net.update_slow_targets()            # once per optimizer step, after it

    With `replay` a training forward with targets also runs replayed chunks and stages its own; the flush stores them.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config: Any = config
        self.replay = _replay_stores(config) if config.replay else None
        self.clock = Clock()
        self._warned = False
        self.register_state_dict_pre_hook(_warn_about_pending)

    @property
    def body(self) -> Any:
        """The trunk, under whatever name this backbone keeps it."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------ forward

    def forward(
        self,
        x: Tensor,
        targets: Tensor | None = None,
        *,
        valid: Tensor | None = None,
        origin: Origin | None = None,
        return_logits: bool = True,
        read_memory: bool = True,
    ) -> tuple[Float[Tensor, "B T V"] | None, dict[str, Tensor]]:
        """Logits and, with targets, the losses; `return_logits=False` never forms a (B, T, V) tensor.

        x, targets and valid are (B, T) and checked here, at the border, rather than by annotation. `valid` marks real
        tokens where rows are padded; `origin` is remembered with every event, where there is a memory, and
        `read_memory=False` runs without its feedback.
        """
        self._check_input(x, targets, valid)
        is_learning = self.training and targets is not None
        if not self.training:
            self._drop_pending_events()
        step, micro_step = int(self.clock.step), int(self.clock.micro_step)
        replayed = self._sample_replay(step, micro_step) if is_learning else None
        valid = None if valid is None else valid.bool()
        packed = _pack_with_replay(x, valid, replayed)
        out = self._run(packed, origin, step, with_losses=targets is not None, read_memory=read_memory)

        main = packed.segments[0]
        hidden = out.hidden[: main.stop]
        logits = self.logits(main.of(hidden)) if return_logits or targets is None else None
        aux: dict[str, Tensor] = {}
        if targets is not None:
            labels = targets if valid is None else targets.masked_fill(~valid, IGNORE_INDEX)
            aux = self._losses(out, hidden, logits, labels.reshape(-1), replayed)
        if is_learning:
            self._queue(out, x, valid)
        return logits if return_logits else None, aux

    def _run(
        self, packed: Packed, origin: Origin | None, step: int, *, with_losses: bool, read_memory: bool = True
    ) -> Any:
        """One pass of the trunk; a `TrunkOutput` or more."""
        return self.body(packed)

    def logits(self, hidden: Float[Tensor, "*P D"]) -> Float[Tensor, "*P V"]:
        """The head shares its weights with the embedding."""
        return nn.functional.linear(hidden, self.body.embedding.weight)

    @torch.no_grad()
    def predict(self, x: Tensor, targets: Tensor) -> Prediction:
        """Score the targets and name the likeliest tokens without forming (B, T, V); for evaluation mode."""
        if self.training:
            raise UserError("predict() was called in training mode: call eval() first.")
        self._check_input(x, targets, None)
        self._drop_pending_events()
        hidden = self._run(pack([x]), None, 0, with_losses=False).hidden
        nll, best = linear_predict(hidden, self.body.embedding.weight, targets.reshape(-1))
        return Prediction(nll.view(x.shape), best.view(x.shape))

    # ------------------------------------------------------------------------------------------------------ decoding

    def start_decoding(self) -> Decoding:
        """An empty state for `decode`."""
        return Decoding(self.body.new_states())

    def decode(
        self,
        x: Tensor,
        decoding: Decoding,
        *,
        valid: Tensor | None = None,
        read_memory: bool = True,
        last: int | None = None,
    ) -> Float[Tensor, "B K V"]:
        """Logits of the next tokens of every row, given those already run into `decoding`; writes nothing else.

        `last` asks for the logits of that many final positions only.
        """
        self._check_input(x, None, valid, earlier=decoding.length)
        packed = decoding.pack(x, None if valid is None else valid.bool())
        hidden = self._decode(packed, decoding, read_memory=read_memory).hidden
        decoding.advance(packed.segments[0])
        rows = packed.segments[0].of(hidden)
        return self.logits(rows if last is None else rows[:, -last:])

    def _decode(self, packed: Packed, decoding: Decoding, *, read_memory: bool) -> Any:
        return self.body(packed, decoding=decoding)

    # ------------------------------------------------------------------------------------------------------ losses

    def _losses(
        self,
        out: Any,
        hidden: Float[Tensor, "P D"],
        logits: Float[Tensor, "B T V"] | None,
        labels: Int[Tensor, " P"],
        replayed: Int[Tensor, "B_R L_R"] | None,
    ) -> dict[str, Tensor]:
        """L = L_LM + λ_router L_lb + Σ λ_i L_i + λ_rep L_rep, where L_i are the backbone's own losses."""
        config = self.config
        num_labels = (labels != IGNORE_INDEX).sum()
        head = self.body.embedding.weight
        if logits is None:
            lm_sum = linear_cross_entropy(hidden, head, labels)
        else:
            lm_sum = cross_entropy_sum(logits.flatten(0, 1), labels)
        aux = {
            "loss_lm": lm_sum / num_labels.clamp_min(1),
            "loss_load_balance": config.lambda_load_balance * out.load_balance,
        }
        total = aux["loss_lm"] + config.lambda_router * aux["loss_load_balance"]
        for name, weight, value in self._own_losses(out):
            aux[name] = value
            total = total + weight * value
        aux["loss_replay"] = lm_sum.new_zeros(())
        coefficient = 0.0
        if replayed is not None and self.replay is not None:
            next_tokens = replayed[:, 1:].to(labels.device).reshape(-1)
            replay_sum = linear_cross_entropy(out.hidden[hidden.shape[0] :], head, next_tokens)
            aux["loss_replay"] = replay_sum / next_tokens.numel()
            coefficient = float(self.replay.coefficient)
        aux["loss"] = total + coefficient * aux["loss_replay"]
        aux["num_labels"] = num_labels
        return aux

    def _own_losses(self, out: Any) -> Iterable[tuple[str, float, Tensor]]:
        """(name, weight, value) of the losses only this backbone has."""
        return ()

    def _sample_replay(self, step: int, micro_step: int) -> Int[Tensor, "B_R L_R"] | None:
        """Chunks to replay; none where they would weigh nothing."""
        if self.replay is None or float(self.replay.coefficient) == 0.0:
            return None
        return self.replay.sample(step, micro_step)

    # ------------------------------------------------------------------------------------------------------ step ends

    def _queue(self, out: Any, x: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None) -> None:
        """Keep what this micro-batch leaves behind until the flush, but never more than `max_pending` of them."""
        limit = self.config.max_pending
        if self._num_pending() >= limit and not self._warned:
            self._warned = True
            warnings.warn(
                f"The writes and replay chunks of {limit} micro-batches were never flushed and the oldest are now "
                "dropped: call flush_pending_write() once per optimizer step, before optimizer.step(), or give the "
                "Hugging Face Trainer a trc2.MemoryCallback().",
                stacklevel=3,
            )
        if self.replay is not None:
            self.replay.stage(x, valid)
            self.replay.keep_staged(limit)
        self.clock.micro_step += 1

    def _num_pending(self) -> int:
        """Micro-batches that wait for a flush."""
        return 0 if self.replay is None else self.replay.num_staged_batches

    def _drop_pending_events(self) -> None:
        """An evaluation forward empties the queue of events, where there is one, without committing any."""

    def flush_pending_write(self) -> WriteReport:
        """Commit what micro-batches left behind; once per optimizer step, before `optimizer.step()`."""
        if self.replay is not None:
            self.replay.commit(self.replay.take_staged())
        return WriteReport()

    def discard_pending_write(self) -> None:
        """Forget what this step queued and staged, e.g. because its gradients were not finite."""
        self._drop_pending_events()
        if self.replay is not None:
            self.replay.discard_staged()

    def update_slow_targets(self) -> None:
        """End the step; once per step, after `optimizer.step()`."""
        self.clock.set(int(self.clock.step) + 1, 0)

    @property
    def has_memory(self) -> bool:
        """Whether there is an episodic memory that the flush writes to."""
        return False

    @property
    def num_events(self) -> int:
        """Filled slots of the memory."""
        return 0

    def begin_task(self, index: int, batches: Iterable[Tensor]) -> None:
        """Told by the trainer before a task's first step, with some of its token batches. Most backbones ignore it."""

    def follow_state(self) -> None:
        """Set what is no tensor but follows from some; called after a state was loaded in an unusual way."""

    def tensors_without_reader(self) -> list[str]:
        """Names of trainable tensors that no loss can reach."""
        return []

    def tensors_waiting(self) -> list[str]:
        """Names of trainable tensors that no loss can reach before a later task begins."""
        return []

    def get_input_embeddings(self) -> nn.Embedding:
        return self.body.embedding

    # ------------------------------------------------------------------------------------------------------ border

    def _check_input(self, x: Tensor, targets: Tensor | None, valid: Tensor | None, earlier: int = 0) -> None:
        config = self.config
        if x.ndim != 2 or x.dtype != torch.int64:
            raise UserError(
                f"x has shape {tuple(x.shape)} and type {x.dtype}: give token ids as int64 of shape (B, T)."
            )
        if targets is not None and targets.dtype != torch.int64:
            raise UserError(f"targets has type {targets.dtype}: give token ids as int64.")
        if x.numel() == 0:
            raise UserError(f"x has shape {tuple(x.shape)}, an empty batch: give at least one sequence of one token.")
        if earlier + x.shape[1] > config.max_positions:
            raise UserError(
                f"x has {earlier + x.shape[1]} tokens per sequence, more than max_positions={config.max_positions}: "
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


def _replay_stores(config: BackboneConfig) -> ReplayStores:
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
    if isinstance(net, Backbone) and net._num_pending():
        warnings.warn(
            f"state_dict() was taken while the writes and replay chunks of {net._num_pending()} micro-batches were "
            "pending, which are not saved: flush them first, at the end of the optimizer step.",
            stacklevel=3,
        )
