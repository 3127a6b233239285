"""Two stores of raw token chunks: a recency buffer, and a reservoir of all chunks ever seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from trc2.config import BackboneConfig
from trc2.nn.host import HostState
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.replay.reservoirs import Stretches, last_for_each, uniform_slots, weighted_slots
from trc2.system.rng import keyed_generator

Keep = Literal["uniform", "loss", "surprise", "balanced"]
Staged = tuple[Tensor, Tensor]  # chunks of a micro-batch, and a score of how hard each was
MAX_STRETCHES = 256


def token_dtype(vocab_size: int) -> torch.dtype:
    """The type of stored tokens: 16 bits where they hold all V tokens and their marked forms −1 … −V."""
    return torch.int16 if vocab_size <= 2**15 else torch.int32


def stored_bytes(config: BackboneConfig) -> int:
    """The bytes of both stores' chunks."""
    chunks = config.replay_recent_chunks + config.replay_long_chunks
    return token_dtype(config.vocab_size).itemsize * chunks * config.replay_chunk_length


class ReplayStores(HostState):
    """Recency buffer and reservoir, whose draws are functions of (seed, step, micro-step).

    Chunks of a step are *staged*: they count as seen, but are not drawn before `commit`. So every micro-step draws
    from the stores as they were at the start of its step, and a failed step leaves no trace.

    The stores are on the host. Only B_R drawn chunks are copied to the model's device.

    A token on which the loss is not taken, such as one of a question, is stored with its sign: see `mark_unlabelled`.
    """

    recent: Tensor
    long: Tensor
    seen: Tensor
    coefficient: Tensor
    batch_size: Tensor
    long_fraction: Tensor
    share: Tensor | None
    reservoir_keys: Tensor
    stretch_of_slot: Tensor
    stretch_lengths: Tensor
    stretch: Tensor
    loss_mean: Tensor
    since_jump: Tensor

    def __init__(
        self,
        recent_chunks: int,
        long_chunks: int,
        chunk_length: int,
        *,
        seed: int = 0,
        coefficient: float = 0.05,
        batch_size: int = 4,
        long_fraction: float = 0.5,
        share: float | None = None,
        keep: Keep = "uniform",
        dtype: torch.dtype = torch.int32,
    ) -> None:
        """`share` replaces λ_rep and B_R: this share of a step's tokens is replayed, with equal weights.

        `keep` is the rule of the reservoir, see `trc2.replay.reservoirs`. All but `uniform` need a score per token.
        `dtype` is the type of stored tokens, see `token_dtype`.
        """
        super().__init__()
        self.seed, self.keep = seed, keep
        self._staged: list[Staged] = []
        state: dict[str, Tensor | None] = {}
        with torch.device("cpu"):
            if keep in ("loss", "surprise"):
                state["reservoir_keys"] = torch.full((long_chunks,), -torch.inf, dtype=torch.float64)
            elif keep == "balanced":
                state["stretch_of_slot"] = torch.full((long_chunks,), -1)
                state["stretch_lengths"] = torch.zeros(MAX_STRETCHES, dtype=torch.int64)
                state["stretch"] = torch.tensor(0)
                state["loss_mean"] = torch.tensor(torch.nan, dtype=torch.float64)
                state["since_jump"] = torch.tensor(0)
            state["recent"] = torch.zeros(recent_chunks, chunk_length, dtype=dtype)
            state["long"] = torch.zeros(long_chunks, chunk_length, dtype=dtype)
            state["seen"] = torch.tensor(0)
            # λ_rep, B_R, ρ_long and the share: see `set_strength`.
            state["coefficient"] = torch.tensor(coefficient, dtype=torch.float64)
            state["batch_size"] = torch.tensor(batch_size)
            state["long_fraction"] = torch.tensor(long_fraction, dtype=torch.float64)
            state["share"] = None if share is None else torch.tensor(share, dtype=torch.float64)
        for name, tensor in state.items():
            self.register_buffer(name, tensor)

    def set_token_type(self, dtype: torch.dtype) -> None:
        """Hold tokens in another type, for example because the vocabulary grew."""
        self.recent, self.long = self.recent.to(dtype), self.long.to(dtype)

    @property
    def wants_scores(self) -> bool:
        """Whether the reservoir needs scores of how hard the tokens were."""
        return self.keep != "uniform"

    @property
    def chunk_length(self) -> int:
        return self.recent.shape[1]

    @property
    def num_staged(self) -> int:
        return sum(chunks.shape[0] for chunks, _ in self._staged)

    @property
    def num_staged_batches(self) -> int:
        return len(self._staged)

    @property
    def num_seen(self) -> int:
        """Chunks ever offered, counting staged ones."""
        return int(self.seen) + self.num_staged

    @property
    def num_recent(self) -> int:
        """Chunks in the recency buffer, counting staged ones."""
        return min(self.num_seen, self.recent.shape[0])

    @property
    def num_long(self) -> int:
        """Chunks in the reservoir, counting staged ones."""
        return min(self.num_seen, self.long.shape[0])

    # ------------------------------------------------------------------------------------------------------ reading

    def stored(self) -> Int[Tensor, "n L_R"]:
        """The tokens of all committed chunks, each once; chunks that stand in both stores, too."""
        seen = int(self.seen)
        kept = torch.cat((self.long[:seen], self.recent[:seen]))
        return read_chunks(kept.unique(dim=0).long()).tokens

    def sample(self, step: int, micro_step: int) -> Int[Tensor, "B_R L_R"] | None:
        """B_R chunks with replacement, round(B_R · ρ_long) of them from the reservoir. None if nothing is stored."""
        return self.draw(int(self.batch_size), float(self.long_fraction), "replay draw", step, micro_step)

    def sample_share(self, tokens: int, step: int, micro_step: int) -> Int[Tensor, "B_R L_R"] | None:
        """So many chunks that R / (tokens + R) = share on average, ρ_long of them from the reservoir. None for 0.

        Numbers of chunks are rounded up or down at random, by (step, micro-step), so that their means are exact.
        """
        assert self.share is not None
        share, rng = float(self.share), keyed_generator("replay share", self.seed, step, micro_step)
        chunks = _whole(share / (1.0 - share) * tokens / (self.chunk_length - 1), rng)
        from_long = _whole(chunks * float(self.long_fraction), rng)
        return self.draw(chunks, from_long / chunks, "replay draw", step, micro_step) if chunks else None

    def draw(self, total: int, long_fraction: float, *key: int | str) -> Int[Tensor, "B_R L_R"] | None:
        """Chunks as a function of the seed and the key. None if the stores are empty. Read them by `read_chunks`."""
        seen = int(self.seen)
        if seen == 0:
            return None
        from_long = round(total * long_fraction)  # half to even
        name, *rest = key
        rng = keyed_generator(str(name), self.seed, *rest)
        long_slots = torch.randint(min(seen, self.long.shape[0]), (from_long,), generator=rng)
        recent_slots = torch.randint(min(seen, self.recent.shape[0]), (total - from_long,), generator=rng)
        return torch.cat((self.recent[recent_slots], self.long[long_slots])).long()

    # ------------------------------------------------------------------------------------------------------ writing

    def stage(
        self,
        tokens: Int[Tensor, "B T"],
        valid: Bool[Tensor, "B T"] | None = None,
        scores: Float[Tensor, "B T"] | None = None,
        targets: Int[Tensor, "B T"] | None = None,
    ) -> None:
        """Cut each row into its first ⌊T/L_R⌋ whole chunks and keep those without padding for `commit`.

        `scores` say how hard each token was. The score of a chunk is the mean over its tokens. Where `targets` are
        ignored, the next token is stored as one on which the loss is not taken, and its score does not count.
        """
        is_ignored = None if targets is None else targets == IGNORE_INDEX
        if is_ignored is not None and not bool(is_ignored.any()):
            is_ignored = None
        if is_ignored is not None:
            first = torch.zeros_like(is_ignored[:, :1])  # the first token of a row is not a target
            tokens = mark_unlabelled(tokens, torch.cat((first, is_ignored[:, :-1]), dim=1))
        chunks = cut_chunks(tokens, self.chunk_length)
        means = chunks.new_ones(len(chunks), dtype=torch.float64)
        if scores is not None and is_ignored is None:
            means = cut_chunks(scores, self.chunk_length).double().mean(dim=1)
        elif scores is not None and is_ignored is not None:
            counted = cut_chunks(~is_ignored, self.chunk_length)
            of_chunks = cut_chunks(scores, self.chunk_length).double() * counted
            means = of_chunks.sum(dim=1) / counted.sum(dim=1).clamp_min(1)
        if valid is not None:
            whole = cut_chunks(valid, self.chunk_length).all(dim=1)
            chunks, means = chunks[whole], means[whole]
        self._staged.append((chunks.to("cpu", torch.int32), means.cpu()))

    def discard_staged(self) -> None:
        self._staged.clear()

    def keep_staged(self, micro_batches: int) -> None:
        """Drop the oldest staged micro-batches, which would fill the memory of a caller that never commits."""
        del self._staged[: max(0, len(self._staged) - micro_batches)]

    def take_staged(self) -> Staged:
        """Remove and return the staged chunks and their scores in order.

        They have 32 bits whatever the stores have, because process groups do not send 16-bit integers.
        """
        staged = [(self.recent[:0].int(), torch.zeros(0, dtype=torch.float64)), *self._staged]
        self._staged.clear()
        chunks, scores = zip(*staged, strict=True)
        return torch.cat(chunks), torch.cat(scores)

    @torch.no_grad()
    def commit(self, chunks: Int[Tensor, "n L_R"], scores: Float[Tensor, " n"] | None = None) -> None:
        """Insert chunks, in order, into the recency buffer and the reservoir.

        Reservoir draws are keyed by the number of chunks seen before, which differs between commits.
        """
        first = int(self.seen)
        numbers = torch.arange(first, first + chunks.shape[0])
        _write_last(self.recent, numbers % self.recent.shape[0], chunks)
        rng = keyed_generator("reservoir", self.seed, first)
        slots = self._choose_slots(first, len(chunks), scores, rng)
        kept = slots < self.long.shape[0]
        _write_last(self.long, slots[kept], chunks[kept])
        self.seen += chunks.shape[0]

    def _choose_slots(
        self, first: int, count: int, scores: Float[Tensor, " n"] | None, rng: torch.Generator
    ) -> Int[Tensor, " n"]:
        """Reservoir slot for each of `count` chunks. Unscored chunks get weight 1."""
        if self.keep == "balanced":
            stretches = Stretches(
                self.stretch_of_slot, self.stretch_lengths, self.stretch, self.loss_mean, self.since_jump
            )
            if scores is not None and count:
                stretches.observe_loss(float(scores.mean()))
            return stretches.slots(torch.rand(count, 2, dtype=torch.float64, generator=rng))
        draws = torch.rand(count, dtype=torch.float64, generator=rng)
        if self.keep == "uniform":
            return uniform_slots(first, self.long.shape[0], draws)
        return weighted_slots(self.reservoir_keys, torch.ones_like(draws) if scores is None else scores, draws)

    @property
    def is_off(self) -> bool:
        """Whether replay has no weight."""
        return float(self.coefficient if self.share is None else self.share) == 0.0

    def strength(self) -> dict[str, Any]:
        """The current arguments of `set_strength`."""
        names = ("coefficient", "batch_size", "long_fraction", "share")
        return {name: None if (value := getattr(self, name)) is None else value.item() for name in names}

    def set_strength(
        self, coefficient: float, batch_size: int, long_fraction: float, share: float | None = None
    ) -> None:
        """Set λ_rep, B_R and ρ_long, or the share and ρ_long, as the replay controller asks."""
        self.coefficient.fill_(coefficient)
        self.batch_size.fill_(batch_size)
        self.long_fraction.fill_(long_fraction)
        if self.share is not None and share is not None:
            self.share.fill_(share)


def cut_chunks(tokens: Shaped[Tensor, "B T"], chunk_length: int) -> Shaped[Tensor, "n L_R"]:
    """C(x): the first ⌊T/L_R⌋ non-overlapping chunks of every row."""
    per_row = tokens.shape[1] // chunk_length
    return tokens[:, : per_row * chunk_length].reshape(-1, chunk_length)


def mark_unlabelled(tokens: Int[Tensor, "*B T"], is_unlabelled: Bool[Tensor, "*B T"]) -> Int[Tensor, "*B T"]:
    """Token t as −1−t where the loss is not taken on it, so that a chunk needs no second tensor for its labels."""
    return torch.where(is_unlabelled, -1 - tokens, tokens)


@dataclass(frozen=True)
class Replayed:
    """Drawn chunks: their tokens, the target of all but the last, −100 where ignored, and the number of labels."""

    tokens: Int[Tensor, "n L_R"]
    targets: Int[Tensor, "n M"]
    num_labels: int

    @property
    def x(self) -> Int[Tensor, "n M"]:
        """All tokens but the last, which is only a target."""
        return self.tokens[:, :-1]


def read_chunks(chunks: Int[Tensor, "n L_R"]) -> Replayed:
    """Stored chunks as input and targets, −100 where the loss is not taken."""
    is_marked = chunks < 0
    tokens, targets = torch.where(is_marked, -1 - chunks, chunks), chunks.masked_fill(is_marked, IGNORE_INDEX)[:, 1:]
    return Replayed(tokens, targets, targets.numel() - int(is_marked[:, 1:].sum()))


def _write_last(store: Tensor, slots: Tensor, chunks: Tensor) -> None:
    """store[slots] = chunks. The last of several chunks for a slot stays, which plain indexing does not ensure."""
    where, which = last_for_each(slots)
    store[where] = chunks[which].to(store.dtype)


def _whole(exact: float, rng: torch.Generator) -> int:
    """A whole number that is `exact` on average."""
    return int(exact + float(torch.rand((), dtype=torch.float64, generator=rng)))
