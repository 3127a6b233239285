"""Episodic memory: reading is part of the forward pass, writing waits for the end of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.config import TRC2Config
from trc2.distributed.group import ALONE, Ranks
from trc2.model.critic import Appraisal, Critic
from trc2.nn.host import HostState
from trc2.nn.linear import PlainLinear, ScaledLinear
from trc2.nn.provenance import ORIGIN_FIELDS, UNKNOWN
from trc2.nn.trunk import Pending, Proposal, WriteReport
from trc2.ops.modes import at_least_float32
from trc2.ops.selection import top_k

# `Hippocampus.search` compares queries with slots in blocks and keeps the best slots of each block, so that memory use
# does not grow with tokens × slots. These two are the number of scores in a block, queries × slots: 2^22 on a CPU,
# where their 16 MB fit into the cache, and 2^26 on other devices, where fewer and larger products are faster.
CPU_BLOCK = 2**22
LARGE_BLOCK = 2**26
# The slots of a block are counted as if it had at most this many queries. With fewer queries, as in decoding, a block
# has more slots. With more queries it has no fewer slots, and the queries are spread over several blocks.
MANY_QUERIES = 1024


@dataclass(frozen=True)
class Retrieval:
    """The k best slots of every position, and softmax(a) over them."""

    slots: Int[Tensor, "P k"]
    weights: Float[Tensor, "P k"]


class Cursor(HostState):
    """How many slots hold an event, and which slot is written next."""

    count: Tensor
    pointer: Tensor

    def __init__(self) -> None:
        super().__init__("count", "pointer")

    def set(self, count: int, pointer: int) -> None:
        self.count.fill_(count)
        self.pointer.fill_(pointer)


class Hippocampus(nn.Module):
    """Content-addressed store of surprising cortical states: `recall` and `propose` are pure, `commit` writes.

    The N_s slots form a circle: a new event overwrites the oldest. The reader sees the S_max most recent events.
    """

    keys: Tensor
    values: Tensor
    origins: Tensor
    threshold: Tensor

    def __init__(self, config: TRC2Config) -> None:
        super().__init__()
        d_model, key_dim = config.d_model, config.memory_key_dim
        self.num_slots = config.memory_slots
        self.window = min(config.memory_slots, config.memory_read_window)
        self.top_k, self.read_chunk = config.memory_top_k, config.memory_read_chunk
        self.writes_per_sequence = config.writes_per_sequence
        self.keep_target = min(1.0, config.target_writes_per_sequence / config.writes_per_sequence)
        self.threshold_decay = config.write_threshold_decay

        self.register_buffer("keys", torch.zeros(self.num_slots, key_dim))
        self.register_buffer("values", torch.zeros(self.num_slots, d_model))
        origins = torch.full((self.num_slots, len(ORIGIN_FIELDS)), UNKNOWN, dtype=torch.int64)
        self.register_buffer("origins", origins)
        self.cursor = Cursor()
        if config.has_readout:
            self.query = nn.Linear(d_model, key_dim, bias=False)
            self.output = ScaledLinear(d_model, d_model)
            self.output_gate = nn.Parameter(torch.zeros(d_model))
        self.has_readout = config.has_readout
        self.critic = Critic(config)
        # Fixed random maps: the memory stays a nonparametric store over cortical features.
        self.write_key = PlainLinear(d_model, key_dim).requires_grad_(False)
        self.write_value = PlainLinear(d_model, d_model).requires_grad_(False)
        self.register_buffer("threshold", torch.zeros(()))

    @property
    def count(self) -> int:
        """Slots that hold an event."""
        return int(self.cursor.count)

    @property
    def pointer(self) -> int:
        """The slot the next event goes to."""
        return int(self.cursor.pointer)

    def forget(self) -> None:
        """Empty the store and reset the threshold. The slots keep their numbers, which are not read."""
        self.cursor.set(0, 0)
        self.threshold.zero_()

    # ------------------------------------------------------------------------------------------------------ reading

    def read_ranges(self) -> list[range]:
        """I_read, the n_read = min(n, S_max) most recent slots, as one or two contiguous ranges in order of slots."""
        first = self.pointer - min(self.count, self.window)  # slots before 0 are the end of the circle
        if first < 0:
            ranges = [range(self.pointer), range(first % self.num_slots, self.num_slots)]
        else:
            ranges = [range(first, self.pointer)]
        return [part for part in ranges if len(part) > 0]

    def in_view(self) -> Bool[Tensor, " S"]:
        """Which slots the reader sees, by arithmetic on the counters: a compiled graph cannot look at them."""
        device = self.keys.device
        age = (self.cursor.pointer.to(device) - 1 - torch.arange(self.num_slots, device=device)) % self.num_slots
        return age < self.cursor.count.clamp_max(self.window).to(device)

    def reading(self) -> list[Tensor]:
        """The parameters that are not used while the memory is empty."""
        return [self.query.weight, self.output.weight, self.output_gate]

    def recall(self, hidden: Float[Tensor, "P D"], retrieval: Retrieval | None = None) -> Float[Tensor, "P D"]:
        """M = (R W_O) ⊙ σ(g_hip) with R = Σ_i softmax(a)_i V_i over the exact top-k_H slots in view.

        R is exactly 0 while the memory is empty. `retrieval` is what `retrieve` returned, if it was called before.
        """
        retrieval = self.retrieve(hidden) if retrieval is None else retrieval
        if retrieval is None:
            mixed = torch.zeros_like(hidden)
        else:
            values, weights = self.values.to(retrieval.weights.dtype), retrieval.weights
            mixed = F.embedding_bag(retrieval.slots, values, per_sample_weights=weights, mode="sum").to(hidden.dtype)
        return self.output(mixed, torch.sigmoid(self.output_gate))

    def retrieve(self, hidden: Float[Tensor, "P D"]) -> Retrieval | None:
        """The top-k_H slots of every position. None while the memory is empty."""
        if torch.compiler.is_compiling():
            return self._retrieve_masked(hidden)
        if not (window := self.read_ranges()):
            return None
        query = at_least_float32(self.query(hidden)) / math.sqrt(self.keys.shape[1])
        with torch.autocast(query.device.type, enabled=False):  # a float32 island: half scores pick other slots
            slots = self.search(query.detach(), window)
        # Selecting carries no gradient. Only the selected scores are formed again with one.
        scores = (query.unsqueeze(1) * self.keys[slots].to(query.dtype)).sum(dim=-1)
        return Retrieval(slots, scores.softmax(dim=-1))

    def _retrieve_masked(self, hidden: Float[Tensor, "P D"]) -> Retrieval:
        """`retrieve` for a compiled graph: all slots are scored and those out of view masked.

        No shape depends on the counters, so what is read follows them without compiling again. Slots out of view, all
        of them while the memory is empty, have weight 0.
        """
        query = at_least_float32(self.query(hidden)) / math.sqrt(self.keys.shape[1])
        with torch.autocast(query.device.type, enabled=False):
            scores = query @ self.keys.to(query.dtype).T
        in_view, lowest = self.in_view(), torch.finfo(scores.dtype).min
        slots = top_k(scores.detach().masked_fill(~in_view, lowest), min(self.top_k, self.keys.shape[0]))
        is_read = in_view[slots]
        return Retrieval(slots, scores.gather(1, slots).masked_fill(~is_read, lowest).softmax(dim=-1) * is_read)

    @torch.no_grad()
    def search(self, query: Float[Tensor, "P K"], window: list[range]) -> Int[Tensor, "P k"]:
        """Slots of the k best scores. Ties go to the lowest slot.

        The window is scanned in chunks of at least `read_chunk` slots: more where a block of scores has room for them,
        which is faster and gives the same result. All blocks use one buffer, whose size depends neither on the number
        of tokens nor on that of slots.
        """
        block = CPU_BLOCK if query.device.type == "cpu" else LARGE_BLOCK
        width = max(self.read_chunk, block // min(query.shape[0], MANY_QUERIES))
        chunks = [
            (start, min(start + width, slots.stop))
            for slots in window
            for start in range(slots.start, slots.stop, width)
        ]
        widest = max(stop - start for start, stop in chunks)
        rows = min(query.shape[0], max(1, block // widest))
        buffer = query.new_empty(rows * widest)
        return torch.cat([self._search_rows(part, chunks, buffer) for part in query.split(rows)])

    def _search_rows(
        self, query: Float[Tensor, "Q K"], chunks: list[tuple[int, int]], buffer: Float[Tensor, " N"]
    ) -> Int[Tensor, "Q k"]:
        best_scores = best_slots = None
        for start, stop in chunks:
            scores = buffer[: query.shape[0] * (stop - start)].view(query.shape[0], -1)
            torch.mm(query, self.keys[start:stop].to(query.dtype).T, out=scores)
            local = top_k(scores, min(self.top_k, stop - start))
            values, slots = scores.gather(1, local), local + start
            if best_scores is not None and best_slots is not None:
                # Earlier slots come first in the concatenation, so the lowest index still wins ties.
                values, slots = torch.cat((best_scores, values), dim=1), torch.cat((best_slots, slots), dim=1)
                winners = top_k(values, min(self.top_k, values.shape[1]))
                values, slots = values.gather(1, winners), slots.gather(1, winners)
            best_scores, best_slots = values, slots
        assert best_slots is not None, "an empty memory is not searched"
        return best_slots

    # ------------------------------------------------------------------------------------------------------ proposing

    def propose(
        self, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None
    ) -> tuple[Appraisal, Proposal | None]:
        """Appraise detached states and pick the k_W most surprising of each sequence. Changes nothing."""
        appraisal = self.critic(states, valid)
        rows, length, _ = states.shape
        if length < 2:
            return appraisal, None
        surprise = appraisal.surprise.detach()
        # Surprise is never negative, so −1 marks padding: it is picked last, and dropped below as not `real`.
        masked = surprise if valid is None else surprise.masked_fill(~valid, -1.0)
        picked = top_k(masked, min(self.writes_per_sequence, length)).sort(dim=1).values
        scores = masked.gather(1, picked)
        real = scores >= 0
        row = torch.arange(rows, device=states.device).unsqueeze(1).expand_as(picked)
        proposal = Proposal(
            surprise=surprise,
            num_tokens=rows * length if valid is None else int(valid.sum()),
            states=states[row, picked][real],
            scores=scores[real],
            places=torch.stack((row, picked), dim=-1)[real],
        )
        return appraisal, proposal

    # ------------------------------------------------------------------------------------------------------ writing

    @torch.no_grad()
    def commit(self, pending: Sequence[Pending], ranks: Ranks = ALONE) -> WriteReport:
        """Move the threshold by the union of all candidates of all ranks, then write those above it, in order.

        τ ← β τ + (1 − β) Quantile(candidates, 1 − ρ_keep).  Write where s > τ.

        Scores are gathered first and give every rank the same τ. So each rank knows which of its own candidates
        survive, and sends only those.
        """
        own = _union(pending, self.values[:0])
        scores, facts = ranks.gather(own.scores, own.facts)
        if scores.numel() == 0:
            return WriteReport(threshold=float(self.threshold), fill=self.count / self.num_slots)
        raw_writes = int((scores > self.threshold).sum())
        quantile = torch.quantile(scores, 1.0 - self.keep_target)
        self.threshold.mul_(self.threshold_decay).add_((1.0 - self.threshold_decay) * quantile)
        kept = own.scores > self.threshold
        states, origins = ranks.gather(own.states[kept], own.origins[kept])
        self.write(states, origins)
        sums, peaks, tokens = facts.T.tolist()
        return WriteReport(
            candidates=scores.numel(),
            writes=states.shape[0],
            raw_writes=raw_writes,
            threshold=float(self.threshold),
            surprise_mean=sum(sums) / max(1, sum(tokens)),
            surprise_max=max(peaks),
            fill=self.count / self.num_slots,
        )

    @torch.no_grad()
    def write(self, states: Float[Tensor, "N D"], origins: Int[Tensor, "N 4"] | None = None) -> None:
        """K = X W_K, V = X W_V. Event n goes to slot (pointer + n) mod N_s, in place."""
        total = states.shape[0]
        first = max(0, total - self.num_slots)  # of more events than slots only the last ones would survive
        slots = (self.pointer + torch.arange(first, total, device=self.keys.device)) % self.num_slots
        events = states[first:].to(self.write_key.weight.dtype)
        self.keys[slots] = self.write_key(events).to(self.keys.dtype)
        self.values[slots] = self.write_value(events).to(self.values.dtype)
        self.origins[slots] = UNKNOWN if origins is None else origins[first:]
        self.cursor.set(min(self.count + total, self.num_slots), (self.pointer + total) % self.num_slots)


@dataclass(frozen=True)
class _Union:
    """The candidates of several micro-batches, end to end. Of each batch Σ s, max s and the number of tokens."""

    scores: Float[Tensor, " N"]
    states: Float[Tensor, "N D"]
    origins: Int[Tensor, "N 4"]
    facts: Float[Tensor, "A 3"]


def _union(pending: Sequence[Pending], nothing: Float[Tensor, "0 D"]) -> _Union:
    proposals = [waiting.proposal for waiting in pending]
    if not proposals:
        return _Union(nothing[:, 0], nothing, nothing.new_empty(0, 4).long(), nothing.new_empty(0, 3).double())
    return _Union(
        scores=torch.cat([proposal.scores for proposal in proposals]),
        states=torch.cat([proposal.states for proposal in proposals]),
        origins=torch.cat([waiting.origins for waiting in pending]),
        facts=torch.stack([_facts(proposal) for proposal in proposals]),
    )


def _facts(proposal: Proposal) -> Float[Tensor, " 3"]:
    """Σ s, max s and the number of tokens. Padding adds exact zeros to the sum."""
    surprise = proposal.surprise
    tokens = torch.as_tensor(proposal.num_tokens, dtype=torch.float64, device=surprise.device)
    return torch.stack((surprise.sum().double(), surprise.max().double(), tokens))
