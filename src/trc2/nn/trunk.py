"""The contract between a trunk and the shell around it.

A trunk is the part of a language model that its paper describes: packed tokens in, normalised states out. It returns
what it computed and writes nothing. Candidates for the memory are returned as a `Proposal`. The shell, in
`trc2.backbones.shell`, owns everything else: losses, replay, the queue of proposals, and the time of their commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trc2.distributed.group import ALONE, Ranks
from trc2.nn.decoding import Decoding, State
from trc2.nn.head import Head
from trc2.nn.segments import Packed
from trc2.ops.modes import with_gradient

T = TypeVar("T")


@dataclass(frozen=True)
class Loss:
    """A loss besides L_LM and L_rep: reported as `loss_NAME`, and added to the total with its weight."""

    name: str
    value: Float[Tensor, ""]
    weight: float | Tensor


@dataclass(frozen=True)
class Proposal:
    """Candidates of one micro-batch for the memory: k_W per sequence, in order of position.

    `places` holds the (row, position in the row) of each candidate. The shell adds task, step and document.
    """

    surprise: Float[Tensor, "B T"]
    num_tokens: int
    states: Float[Tensor, "N D"]
    scores: Float[Tensor, " N"]
    places: Int[Tensor, "N 2"]


@dataclass(frozen=True)
class Pending:
    """A proposal that waits for the end of the step, stamped with where its candidates come from."""

    proposal: Proposal
    origins: Int[Tensor, "N 4"]


@dataclass(frozen=True)
class WriteReport:
    """The result of a commit: the paper's write dynamics."""

    candidates: int = 0
    writes: int = 0
    raw_writes: int = 0
    threshold: float = 0.0
    surprise_mean: float = 0.0
    surprise_max: float = 0.0
    fill: float = 0.0

    @property
    def keep_fraction(self) -> float:
        """Writes ÷ candidates."""
        return self.writes / self.candidates if self.candidates else 0.0

    @property
    def raw_fraction(self) -> float:
        """Share of candidates above the threshold as it was before its update."""
        return self.raw_writes / self.candidates if self.candidates else 0.0


@dataclass(frozen=True)
class TrunkOutput:
    """The results of a pass over packed tokens. Losses and proposal concern the first segment, the training batch."""

    hidden: Float[Tensor, "P D"]
    losses: tuple[Loss, ...] = ()
    proposal: Proposal | None = None


@dataclass(frozen=True)
class LearningPass:
    """The results of a training forward, for functions that add a loss to it (`Backbone.more_losses`).

    `replayed` holds the replayed chunks and `replayed_hidden` their states, one per token but the last of a chunk.
    `replayed_labels` is the next token at each of these states, −100 where the loss is not taken. They are None without
    replay. `replay_weight` is the weight of their loss L_rep in the total.
    """

    x: Int[Tensor, "B T"]
    valid: Bool[Tensor, "B T"] | None
    labels: Int[Tensor, " P"]
    hidden: Float[Tensor, "P D"]
    replayed: Int[Tensor, "B_R L_R"] | None
    replayed_hidden: Float[Tensor, "R D"] | None
    replay_weight: float | Tensor
    replayed_labels: Int[Tensor, " R"] | None = None


class Trunk(nn.Module):
    """The base class of trunks. A trunk without a memory implements `forward`, `new_states` and `subsystems` only."""

    embedding: nn.Embedding
    recompute: bool = False

    @property
    def head(self) -> Head:
        """From states to logits and losses. By default the head shares its weights with the embedding."""
        return Head(self.embedding.weight)

    @property
    def rounding(self) -> float:
        """How far two computations of the same value in float64 may differ, because sums are taken in another order."""
        return 1e-12

    def forward(
        self, packed: Packed, *, with_losses: bool = True, read_memory: bool = True, decoding: Decoding | None = None
    ) -> TrunkOutput:
        """One pass. `with_losses=False` leaves out what only losses and proposals need.

        `read_memory=False` runs without the memory's feedback. `decoding` holds the states of all parts after the rows'
        earlier tokens.
        """
        raise NotImplementedError

    def run(self, unit: Callable[..., T], *args: Any) -> T:
        """Run one of `units`. With `recompute` only its inputs are kept, and it runs again in the backward pass.

        A unit computes and returns, so running it twice writes nothing twice.
        """
        if not self.recompute:
            return unit(*args)
        return with_gradient(partial(checkpoint, unit, use_reentrant=False), unit, *args)

    def units(self) -> list[nn.Module]:
        """The modules that hold most weights and run as wholes. They can be divided over ranks and recomputed."""
        return []

    def tables(self) -> list[Tensor]:
        """The weights of embedding and head. They are divided over ranks as well, and whole throughout a pass."""
        return [self.embedding.weight]

    def layers(self) -> list[nn.Module]:
        """For every layer, the module whose first argument is the state (P, D) that enters it. May be empty."""
        return []

    def new_states(self) -> Sequence[State]:
        """The start of decoding: one empty state for every part that reads earlier tokens."""
        raise NotImplementedError

    def commit(self, pending: Sequence[Pending], ranks: Ranks = ALONE) -> WriteReport:
        """Write the proposals of a step, in their order. Nothing else changes a memory.

        `pending` holds the proposals of this rank. All ranks write the same events.
        """
        return WriteReport()

    def after_step(self) -> None:
        """Update what follows the weights, after an optimizer step."""

    @property
    def has_memory(self) -> bool:
        """Whether there is an episodic memory that `commit` writes to."""
        return False

    @property
    def num_events(self) -> int:
        """Filled slots of the memory."""
        return 0

    def subsystems(self) -> dict[str, list[nn.Module]]:
        """The trunk's modules by subsystem. The first subsystem also counts modules that are not named."""
        raise NotImplementedError

    def unused_parameters(self) -> list[str]:
        """Names of trainable tensors that no loss can ever reach."""
        return []

    def tensors_without_decay(self) -> list[str]:
        """Names of tensors that weight decay must leave alone, besides vectors and scalars, which it always does."""
        return []

    def critic_tensors(self) -> list[str]:
        """Names of tensors that learn from detached states only, apart from the rest of the network."""
        return []
