"""The shell that all backbones share: losses, replay, the queue of writes, evaluation and decoding."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from typing_extensions import TypeVar

from trc2.backbones.compiled import CompiledSteps
from trc2.backbones.input_checks import check_chunk_fits, check_input
from trc2.config import BackboneConfig
from trc2.distributed.group import ALONE, Ranks
from trc2.errors import UserError
from trc2.nn.decoding import Decoding
from trc2.nn.head import Head
from trc2.nn.host import HostState
from trc2.nn.provenance import Origin, stamp
from trc2.nn.segments import Packed, pack
from trc2.nn.trunk import LearningPass, Loss, Pending, Trunk, TrunkOutput, WriteReport
from trc2.ops.head_loss import IGNORE_INDEX, cross_entropy_sum
from trc2.recall.reader import Recall, RecallingHead
from trc2.replay.stores import Replayed, ReplayStores, read_chunks, token_dtype

C = TypeVar("C", bound=BackboneConfig, covariant=True, default=BackboneConfig)
T = TypeVar("T", bound=Trunk, covariant=True, default=Trunk)


@dataclass(frozen=True)
class Prediction:
    """−log p of every target (0 where ignored), and the likeliest token at every position."""

    nll: Float[Tensor, "B T"]
    tokens: Int[Tensor, "B T"]


class Clock(HostState):
    """The next optimizer step and micro-step, which are the key of all replay draws. Only the shell moves it."""

    step: Tensor
    micro_step: Tensor

    def __init__(self) -> None:
        super().__init__("step", "micro_step")

    def set(self, step: int, micro_step: int) -> None:
        self.step.fill_(step)
        self.micro_step.fill_(micro_step)

    def tick(self) -> None:
        """Count one more micro-batch of this step."""
        self.micro_step += 1

    def end_step(self) -> None:
        self.set(int(self.step) + 1, 0)


class Backbone(nn.Module, Generic[C, T]):
    """A language model with the paper's calling convention, whatever its trunk.

        logits, aux = net(x, targets=y)      # y already shifted: y[t] = x[t+1]; −100 is ignored
        aux["loss"].backward()
        net.commit()                         # write what the micro-batches of this step queued
        net.before_step()
        optimizer.step()
        net.after_step()

    The paper's names for the two moments around `optimizer.step()` are `flush_pending_write` and
    `update_slow_targets`. Calls go one way: the shell calls its trunk, and the trunk returns.

    With `replay` a training forward with targets also runs replayed chunks and stages its own. `commit` stores them.

    `recall` reads documents that the model was taught. It is not part of the network: training does not use it, and
    `state_dict` does not contain it.

    `ranks` are the processes it learns with: `commit` writes what all of them queued and staged, the same on each.
    """

    trunk: T

    def __init__(self, config: C, trunk: T, name: str = "trunk") -> None:
        """`name` is the attribute of the trunk, hence the first part of the names of its tensors."""
        super().__init__()
        self.config = config
        self.replay = _replay_stores(config) if config.replay else None
        self.clock = Clock()
        self.recall: Recall | None = None
        self.steps: CompiledSteps | None = None  # for decoding, see `trc2.backbones.compiled`
        self.ranks: Ranks = ALONE
        self.more_losses: Callable[[LearningPass], Sequence[Loss]] | None = None  # a strategy's, in training
        self._trunk_name = name
        self.add_module(name, trunk)
        self.pending: deque[Pending] = deque(maxlen=config.max_unflushed_batches)
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
        read_memory: bool = True,
    ) -> tuple[Float[Tensor, "B T V"] | None, dict[str, Tensor]]:
        """Logits and, with targets, the losses. `return_logits=False` never forms a (B, T, V) tensor.

        x, targets and valid are (B, T). `check_input` checks them. `valid` marks real tokens where rows are padded.
        With a memory, `origin` is stored with every event. `read_memory=False` runs without its feedback, and without
        `recall`.
        """
        check_input(self.config, x, targets, valid)
        is_learning = self.training and targets is not None
        if is_learning:
            check_chunk_fits(self.config, x.shape[1])
        if not self.training:
            self.pending.clear()
        drawn = self._sample_replay(x.numel()) if is_learning else None
        replayed = None if drawn is None else read_chunks(drawn)
        valid = None if valid is None else valid.bool()
        packed = _pack_with_replay(x, valid, replayed)
        out = self.trunk(packed, with_losses=targets is not None, read_memory=read_memory)

        main = packed.segments[0]
        hidden = out.hidden[: main.stop]
        head = self._reading_head(x, valid) if read_memory and not self.training else self.trunk.head
        logits = head.logits(main.of(hidden)) if return_logits or targets is None else None
        aux: dict[str, Tensor] = {}
        if targets is not None:
            labels = targets if valid is None else targets.masked_fill(~valid, IGNORE_INDEX)
            aux = self._losses(out, head, hidden, logits, labels.reshape(-1), x, valid, replayed)
        if is_learning:
            assert targets is not None
            self._queue(out, x, targets, valid, origin)
        return logits if return_logits else None, aux

    def logits(self, hidden: Float[Tensor, "*P D"]) -> Float[Tensor, "*P V"]:
        """The trunk's head. Most share its weights with the embedding."""
        return self.trunk.head.logits(hidden)

    def _reading_head(self, x: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None = None) -> Head:
        """The trunk's head, which also reads the taught documents if there are any."""
        if self.recall is None:
            return self.trunk.head
        return RecallingHead(self.trunk.head, self.recall, self.recall.follow(x, valid))

    @torch.no_grad()
    def predict(self, x: Tensor, targets: Tensor) -> Prediction:
        """Score the targets and find the likeliest tokens without forming (B, T, V). In evaluation mode only."""
        if self.training:
            raise UserError("predict() was called in training mode: call eval() first.")
        check_input(self.config, x, targets)
        self.pending.clear()
        out = self.trunk(pack([x]), with_losses=False)
        nll, best = self._reading_head(x).predict(out.hidden, targets.reshape(-1))
        return Prediction(nll.view(x.shape), best.view(x.shape))

    def _sample_replay(self, num_tokens: int) -> Int[Tensor, "B_R L_R"] | None:
        """Chunks to replay beside this many new tokens. None where their weight is 0."""
        if self.replay is None or self.replay.is_off:
            return None
        step, micro_step = int(self.clock.step), int(self.clock.micro_step)
        if self.replay.share is not None:
            return self.replay.sample_share(num_tokens, step, micro_step)
        return self.replay.sample(step, micro_step)

    def _losses(
        self,
        out: TrunkOutput,
        head: Head,
        hidden: Float[Tensor, "P D"],
        logits: Float[Tensor, "B T V"] | None,
        labels: Int[Tensor, " P"],
        x: Int[Tensor, "B T"],
        valid: Bool[Tensor, "B T"] | None,
        replayed: Replayed | None,
    ) -> dict[str, Tensor]:
        """L = L_LM + Σ λ_i L_i + λ_rep L_rep, where L_i are the trunk's own losses and, in training, a strategy's.

        L_LM and L_rep are means over their labels. With a share instead of λ_rep, new and replayed tokens all have the
        weight 1/|Ω| if all of them are labels.
        """
        num_labels = (labels != IGNORE_INDEX).sum()
        num_new = hidden.shape[0]
        lm_sum = head.loss_sum(hidden, labels) if logits is None else cross_entropy_sum(logits.flatten(0, 1), labels)
        aux = {"loss_lm": lm_sum / num_labels.clamp_min(1)}
        replay_loss, weight = lm_sum.new_zeros(()), self._replay_weight(replayed, x, valid)
        replayed_hidden = replayed_labels = None
        if replayed is not None:
            replayed_hidden, replayed_labels = out.hidden[num_new:], replayed.targets.to(labels.device).reshape(-1)
            replay_loss = self.trunk.head.loss_sum(replayed_hidden, replayed_labels) / max(1, replayed.num_labels)
        losses = list(out.losses)
        if self.more_losses is not None and self.training:
            chunks = None if replayed is None else replayed.tokens
            seen = LearningPass(x, valid, labels, hidden, chunks, replayed_hidden, weight, replayed_labels)
            losses += self.more_losses(seen)
        total = aux["loss_lm"]
        for loss in losses:
            aux[f"loss_{loss.name}"] = loss.value
            total = total + loss.weight * loss.value
        aux["loss_replay"] = replay_loss
        aux["loss"] = total + weight * replay_loss
        aux["num_labels"] = num_labels
        return aux

    def _replay_weight(
        self, replayed: Replayed | None, x: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None
    ) -> float | Tensor:
        """The weight of L_rep: λ_rep, or with a share the number of replayed tokens ÷ the number of new tokens.

        Tokens and not labels, because a batch of long questions may have a single label.
        """
        if replayed is None or self.replay is None:
            return 0.0
        if self.replay.share is None:
            return float(self.replay.coefficient)
        num_new = torch.full((), x.numel(), device=x.device) if valid is None else valid.sum().clamp_min(1)
        return replayed.x.numel() / num_new

    # ------------------------------------------------------------------------------------------------------ decoding

    def start_decoding(self) -> Decoding:
        """An empty state for `decode`."""
        return Decoding(self.trunk.new_states())

    def decode(
        self,
        x: Tensor,
        decoding: Decoding,
        *,
        valid: Tensor | None = None,
        read_memory: bool = True,
        last: int | None = None,
    ) -> Float[Tensor, "B K V"]:
        """Logits of the next tokens of every row after those already in `decoding`. Changes nothing else.

        With `last`, only the logits of that many final positions are computed.
        """
        check_input(self.config, x, None, valid, earlier=decoding.length)
        packed = decoding.pack(x, None if valid is None else valid.bool())
        main, hidden = packed.segments[0], None
        if self.steps is not None and read_memory and self.steps.suit(main):
            hidden = self.steps(x, decoding)
        if hidden is None:
            hidden = self.trunk(packed, with_losses=False, read_memory=read_memory, decoding=decoding).hidden
        decoding.advance(main)

        head, first = self.trunk.head, 0 if last is None else max(0, x.shape[1] - last)
        if self.recall is not None:
            contexts = self.recall.follow(x, valid, decoding.contexts)
            decoding.contexts = contexts[:, -1]
            if read_memory and not self.training:
                head = RecallingHead(head, self.recall, contexts[:, first:])
        return head.logits(main.of(hidden)[:, first:])

    # ------------------------------------------------------------------------------------------- the moments of a step

    def _queue(
        self,
        out: TrunkOutput,
        x: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"],
        valid: Bool[Tensor, "B T"] | None,
        origin: Origin | None,
    ) -> None:
        """Queue the proposal of this micro-batch until the commit, at most `max_unflushed_batches` of them."""
        limit = self.config.max_unflushed_batches
        if self.num_pending >= limit and not self._warned:
            self._warned = True
            warnings.warn(
                f"The writes and replay chunks of {limit} micro-batches were never flushed and the oldest are now "
                "dropped: call flush_pending_write() once per optimizer step, before optimizer.step(), or give the "
                "Hugging Face Trainer a trc2.MemoryCallback().",
                stacklevel=3,
            )
        if self.replay is not None:
            scores = self._scores(out, targets) if self.replay.wants_scores else None
            self.replay.stage(x, valid, scores, targets)
            self.replay.keep_staged(limit)
        if out.proposal is not None:
            self.pending.append(Pending(out.proposal, stamp(out.proposal.places, origin, int(self.clock.step))))
        self.clock.tick()

    @torch.no_grad()
    def _scores(self, out: TrunkOutput, targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """A score per token for the reservoir: the memory's surprise, or −log p of the next token."""
        assert self.replay is not None
        if self.replay.keep == "surprise":
            assert out.proposal is not None, "the config allows this only where there is a memory"
            return out.proposal.surprise
        nll, _ = self.trunk.head.predict(out.hidden[: targets.numel()], targets.reshape(-1))
        return nll.view(targets.shape)

    @property
    def num_pending(self) -> int:
        """Micro-batches that wait for a commit."""
        return max(len(self.pending), 0 if self.replay is None else self.replay.num_staged_batches)

    def begin_task(self, index: int, batches: Iterable[Tensor]) -> None:
        """Called before a task's first step with some of its token batches. Most backbones ignore it."""

    def begin_step(self, first: int) -> None:
        """Called before a step that several ranks share: `first` is the number of this rank's first micro-batch."""
        self.clock.set(int(self.clock.step), first)

    def commit(self) -> WriteReport:
        """Write what the micro-batches of this step queued, on all ranks, into stores and memory."""
        pending = list(self.pending)
        self.pending.clear()
        if self.replay is not None:
            self.replay.commit(*self.ranks.gather(*self.replay.take_staged()))
        return self.trunk.commit(pending, self.ranks)

    def before_step(self) -> None:
        """Called right before `optimizer.step()`."""

    def after_step(self) -> None:
        """Called right after `optimizer.step()`: the trunk follows its new weights, and the step ends."""
        self.trunk.after_step()
        self.clock.end_step()

    def discard(self) -> None:
        """Drop what this step queued and staged, e.g. because its gradients were not finite."""
        self.pending.clear()
        if self.replay is not None:
            self.replay.discard_staged()

    def skip_step(self) -> None:
        """End a step without `optimizer.step()` and drop what it queued."""
        self.discard()
        self.clock.end_step()

    def flush_pending_write(self) -> WriteReport:
        """The paper's name for what comes before `optimizer.step()`: `commit`, then `before_step`."""
        report = self.commit()
        self.before_step()
        return report

    def discard_pending_write(self) -> None:
        """`discard`, named after `flush_pending_write`."""
        self.discard()

    def update_slow_targets(self) -> None:
        """The paper's name for what comes after `optimizer.step()`: `after_step`."""
        self.after_step()

    # ------------------------------------------------------------------------------------------------------ facts

    @property
    def has_memory(self) -> bool:
        """Whether there is an episodic memory that a commit writes to."""
        return self.trunk.has_memory

    @property
    def num_events(self) -> int:
        """Filled slots of the memory."""
        return self.trunk.num_events

    def sync_from_buffers(self) -> None:
        """Recompute attributes that follow from buffers. Called after loading without `load_state_dict`."""

    def unused_parameters(self) -> list[str]:
        """Names of trainable tensors that no loss can reach."""
        return self._names_of(self.trunk.unused_parameters())

    def tensors_without_decay(self) -> list[str]:
        """Names of tensors that weight decay must leave alone, besides vectors and scalars, which it always does."""
        return self._names_of(self.trunk.tensors_without_decay())

    def critic_tensors(self) -> list[str]:
        """Names of tensors that learn from detached states only. `train.clip_critic_apart` clips them by themselves."""
        return self._names_of(self.trunk.critic_tensors())

    def _names_of(self, inside_trunk: list[str]) -> list[str]:
        """The network's names for tensors that the trunk has named."""
        return [f"{self._trunk_name}.{name}" for name in inside_trunk]

    def untrained_parameters(self) -> list[str]:
        """Names of trainable tensors that no loss reaches before a later task begins."""
        return []

    def units(self) -> list[nn.Module]:
        """The modules that may be divided over ranks. Empty where whole weights are needed."""
        return self.trunk.units()

    def tables(self) -> list[Tensor]:
        """The weights of embedding and head, which are divided over ranks if there are units."""
        return self.trunk.tables()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.trunk.embedding

    def set_input_embeddings(self, embedding: nn.Embedding) -> None:
        """For a vocabulary of another size. The head shares these weights."""
        self.trunk.embedding = embedding


def _pack_with_replay(x: Tensor, valid: Tensor | None, replayed: Replayed | None) -> Packed:
    """Pack the batch and the replayed chunks without their last token, which is only a target."""
    return pack([x] if replayed is None else [x, replayed.x.to(x.device)], valid)


def _replay_stores(config: BackboneConfig) -> ReplayStores:
    return ReplayStores(
        config.replay_recent_chunks,
        config.replay_long_chunks,
        config.replay_chunk_length,
        seed=config.replay_seed or 0,
        coefficient=config.replay_coefficient,
        batch_size=config.replay_batch_size,
        long_fraction=config.replay_long_fraction,
        share=config.replay_share,
        keep=config.replay_keep,
        dtype=token_dtype(config.vocab_size),
    )


def _warn_about_pending(net: nn.Module, *_: object) -> None:
    if isinstance(net, Backbone) and net.num_pending:
        warnings.warn(
            f"state_dict() was taken while the writes and replay chunks of {net.num_pending} micro-batches were "
            "pending, which are not saved: flush them first, at the end of the optimizer step.",
            stacklevel=3,
        )
