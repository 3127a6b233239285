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
from trc2.model.critic import Appraisal, Critic
from trc2.nn.host import HostState
from trc2.nn.linear import ScaledLinear
from trc2.nn.provenance import ORIGIN_FIELDS, UNKNOWN
from trc2.nn.trunk import Pending, Proposal, WriteReport
from trc2.ops.islands import at_least_float32
from trc2.ops.selection import top_k
from trc2.ranks.group import ALONE, Ranks

# `Hippocampus.search` compares queries with slots in blocks and keeps the best slots of each block, so that memory use
# does not grow with tokens × slots. These two are the number of scores in a block, queries × slots: 2^22 on a CPU,
# where their 16 MB fit into the cache, and 2^26 on other devices, where fewer and larger products are faster.
CPU_BLOCK = 2**22
LARGE_BLOCK = 2**26
# The slots of a block are counted as if it had at most this many queries. With fewer queries, as in decoding, a block
# has more slots; with more queries it has no fewer slots, and the queries are spread over several blocks.
MANY_QUERIES = 1024


class Cursor(HostState):
    """How many slots hold an event, and which is written next."""

    count: Tensor
    pointer: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device="cpu"))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64, device="cpu"))

    def set(self, count: int, pointer: int) -> None:
        self.count.fill_(count)
        self.pointer.fill_(pointer)


class Hippocampus(nn.Module):
    """Content-addressed store of surprising cortical states: `recall` and `propose` are pure, `commit` writes."""

    keys: Tensor
    values: Tensor
    origins: Tensor
    threshold: Tensor

    def __init__(self, config: TRC2Config) -> None:
        super().__init__()
        d_model, key_dim, slots = config.d_model, config.memory_key_dim, config.memory_slots
        self.top_k, self.read_chunk, self.read_window = (
            config.memory_top_k,
            config.memory_read_chunk,
            config.memory_read_window,
        )
        self.writes_per_sequence = config.writes_per_sequence
        self.keep_target = min(1.0, config.target_writes_per_sequence / config.writes_per_sequence)
        self.threshold_decay = config.threshold_decay

        if config.has_readout:
            self.query = nn.Linear(d_model, key_dim, bias=False)
            self.output = ScaledLinear(d_model, d_model, bias=False)
            self.output_gate = nn.Parameter(torch.zeros(d_model))
        self.has_readout = config.has_readout
        self.critic = Critic(config)
        # Fixed random maps: the memory stays a nonparametric store over cortical features.
        self.write_key = nn.Linear(d_model, key_dim, bias=False).requires_grad_(False)
        self.write_value = nn.Linear(d_model, d_model, bias=False).requires_grad_(False)

        self.register_buffer("keys", torch.zeros(slots, key_dim))
        self.register_buffer("values", torch.zeros(slots, d_model))
        self.register_buffer("origins", torch.full((slots, len(ORIGIN_FIELDS)), UNKNOWN, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(()))
        self.cursor = Cursor()

    @property
    def num_slots(self) -> int:
        return self.keys.shape[0]

    @property
    def count(self) -> int:
        """Slots that hold an event."""
        return int(self.cursor.count)

    @property
    def pointer(self) -> int:
        """The slot the next event goes to."""
        return int(self.cursor.pointer)

    def forget(self) -> None:
        """Empty the store and start with a fresh threshold; what is left in the slots is never read."""
        self.cursor.set(0, 0)
        self.threshold.zero_()

    # ------------------------------------------------------------------------------------------------------ reading

    def recall(self, hidden: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """M = (R W_O) ⊙ σ(g_hip), where R mixes the values of the k_H best matching recent slots."""
        return self.output(self.read(hidden), torch.sigmoid(self.output_gate))

    def read(self, hidden: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """R = Σ_i softmax(a)_i V_i over the exact top-k_H slots; exactly 0 while the memory is empty."""
        if not (window := self.read_ranges()):
            return torch.zeros_like(hidden)
        query = at_least_float32(self.query(hidden)) / math.sqrt(self.keys.shape[1])
        with torch.autocast(query.device.type, enabled=False):  # a float32 island: half scores pick other slots
            slots = self.search(query.detach(), window)
        # Selecting carries no gradient; only the selected scores are formed again with one.
        scores = (query.unsqueeze(1) * self.keys[slots].to(query.dtype)).sum(dim=-1)
        weights = scores.softmax(dim=-1)
        return F.embedding_bag(slots, self.values.to(weights.dtype), per_sample_weights=weights, mode="sum").to(
            hidden.dtype
        )

    @torch.no_grad()
    def search(self, query: Float[Tensor, "P K"], window: list[range]) -> Int[Tensor, "P k"]:
        """Slots of the k best scores; ties go to the lowest slot.

        The window is scanned in chunks of at least `read_chunk` slots: more where a block of scores has room for them,
        which is faster and gives the same result. All blocks use one buffer, whose size depends neither on the number
        of tokens nor on that of slots.
        """
        block = CPU_BLOCK if query.device.type == "cpu" else LARGE_BLOCK
        width = max(self.read_chunk, block // min(query.shape[0], MANY_QUERIES))
        chunks = [
            (start, min(start + width, slots.stop))
            for slots in sorted(window, key=lambda part: part.start)
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

    def read_ranges(self) -> list[range]:
        """I_read, the n_read = min(n, S_max) most recent slots, as one or two contiguous ranges."""
        pointer = self.pointer
        first = pointer - min(self.count, self.read_window)  # slots before 0 are the end of the circle
        ranges = (
            [range(first % self.num_slots, self.num_slots), range(pointer)] if first < 0 else [range(first, pointer)]
        )
        return [part for part in ranges if len(part) > 0]

    # ------------------------------------------------------------------------------------------------------ proposing

    def propose(
        self,
        states: Float[Tensor, "B T D"],
        valid: Bool[Tensor, "B T"] | None,
    ) -> tuple[Appraisal, Proposal | None]:
        """Appraise detached states and pick the k_W most surprising of each sequence; changes nothing."""
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

        τ ← β τ + (1 − β) Quantile(candidates, 1 − ρ_keep);  write where s > τ.

        Scores are gathered first. They give every rank the same τ, so each knows which of its own candidates survive,
        and only those travel.
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
        """Insert events into the circular store: slot(n) = (pointer + n) mod N_s, in place."""
        total, slots = states.shape[0], self.num_slots
        if origins is None:
            origins = torch.full((total, len(ORIGIN_FIELDS)), UNKNOWN, device=states.device)
        # Of more events than slots only the last ones would survive: write just those.
        kept = slice(max(0, total - slots), total)
        where = (self.pointer + torch.arange(total, device=states.device)[kept]) % slots
        events = states[kept].to(self.write_key.weight.dtype)
        self.keys[where] = self.write_key(events).to(self.keys.dtype)
        self.values[where] = self.write_value(events).to(self.values.dtype)
        self.origins[where] = origins[kept]
        self.cursor.set(min(self.count + total, slots), (self.pointer + total) % slots)


@dataclass(frozen=True)
class _Union:
    """The candidates of several micro-batches, end to end; of each batch Σ s, max s and the number of tokens."""

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
    """Σ s, max s and the number of tokens; padding adds exact zeros to the sum."""
    surprise = proposal.surprise
    tokens = torch.as_tensor(proposal.num_tokens, dtype=torch.float64, device=surprise.device)
    return torch.stack((surprise.sum().double(), surprise.max().double(), tokens))
