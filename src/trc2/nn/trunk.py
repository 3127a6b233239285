"""The contract between a trunk and the shell around it.

A trunk is the part of a language model that its paper describes: packed tokens in, normalised states out. It returns
what it computed and writes nothing; what it would like to remember is a `Proposal`. The shell, in
`trc2.backbones.shell`, owns everything else: losses, replay, the queue of proposals, and when they are committed.
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
from trc2.ops.dispatch import with_gradient

T = TypeVar("T")


@dataclass(frozen=True)
class Loss:
    """A loss besides L_LM and L_rep: reported as `loss_NAME`, and added to the total with its weight."""

    name: str
    value: Float[Tensor, ""]
    weight: float | Tensor


@dataclass(frozen=True)
class Proposal:
    """What one micro-batch would like to remember: k_W candidates per sequence, in order of position.

    `places` are their (row, place in the row): the trunk knows no more of where they come from.
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
    """What a commit did; the paper's write dynamics."""

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
    """What a pass over packed tokens computed. Losses and proposal concern the first segment, the training batch."""

    hidden: Float[Tensor, "P D"]
    losses: tuple[Loss, ...] = ()
    proposal: Proposal | None = None


@dataclass(frozen=True)
class LearningPass:
    """What a training forward computed, for those who add a loss of their own to it (`Backbone.more_losses`).

    `replayed` are the chunks it replayed and `replayed_hidden` their states, one per token but the last of a chunk;
    both None if there were none. `replay_weight` is what their loss L_rep counts in the total.
    """

    x: Int[Tensor, "B T"]
    valid: Bool[Tensor, "B T"] | None
    labels: Int[Tensor, " P"]
    hidden: Float[Tensor, "P D"]
    replayed: Int[Tensor, "B_R L_R"] | None
    replayed_hidden: Float[Tensor, "R D"] | None
    replay_weight: float | Tensor


class Trunk(nn.Module):
    """What every trunk has; a trunk with nothing to remember implements `forward` and `new_states` only."""

    embedding: nn.Embedding
    recompute: bool = False

    @property
    def head(self) -> Head:
        """From states to logits and losses; by default the head shares its weights with the embedding."""
        return Head(self.embedding.weight)

    @property
    def rounding(self) -> float:
        """What two ways to compute the same in float64 may differ by: sums may be taken in another order."""
        return 1e-12

    def forward(
        self, packed: Packed, *, with_losses: bool = True, read_memory: bool = True, decoding: Decoding | None = None
    ) -> TrunkOutput:
        """One pass. `with_losses=False` leaves out what only losses and proposals need.

        `read_memory=False` runs without the memory's feedback, where there is one. `decoding` holds what every part
        remembers of the rows' earlier tokens.
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
        """The modules that hold most weights, each run as a whole: what is divided over ranks and recomputed.

        A trunk that names none can do neither.
        """
        return []

    def layers(self) -> list[nn.Module]:
        """For every layer the module whose first argument is the state (P, D) that enters it; none if not told."""
        return []

    def new_states(self) -> Sequence[State]:
        """What decoding begins with: one empty state for every part that looks back."""
        raise NotImplementedError

    def commit(self, pending: Sequence[Pending], ranks: Ranks = ALONE) -> WriteReport:
        """Write what the micro-batches of a step proposed, in their order; the only act that changes a memory.

        `pending` are this rank's own; what is written is the same on all ranks.
        """
        return WriteReport()

    def after_step(self) -> None:
        """Follow the weights that an optimizer step has just changed."""

    @property
    def has_memory(self) -> bool:
        """Whether there is an episodic memory that `commit` writes to."""
        return False

    @property
    def num_events(self) -> int:
        """Filled slots of the memory."""
        return 0

    def subsystems(self) -> dict[str, list[nn.Module]]:
        """The trunk's modules by the subsystem they are counted in; the first one also gets what is not named."""
        raise NotImplementedError

    def unused_parameters(self) -> list[str]:
        """Names of trainable tensors that no loss can ever reach."""
        return []

    def tensors_without_decay(self) -> list[str]:
        """Names of tensors that weight decay must leave alone, besides vectors and scalars, which it always does."""
        return []

    def critic_tensors(self) -> list[str]:
        """Names of tensors that learn from detached states only, so that their gradient is not the network's."""
        return []
