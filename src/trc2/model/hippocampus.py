"""Episodic memory: reading is part of the forward pass, writing waits for the end of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.config import TRC2Config
from trc2.model.critic import Appraisal, Critic
from trc2.model.events import EventStore
from trc2.nn.fingerprint import fingerprints
from trc2.nn.linear import Matrix, ScaledLinear
from trc2.nn.mixture import Mixture
from trc2.nn.provenance import ORIGIN_FIELDS, UNKNOWN
from trc2.nn.trunk import Pending, Proposal, Refresh, WriteReport
from trc2.ops.islands import at_least_float32
from trc2.ops.selection import top_k
from trc2.ranks.group import ALONE, Ranks
from trc2.replay.stores import cut_chunks

# `Hippocampus.search` compares queries with slots in blocks and keeps the best slots of each block, so that memory use
# does not grow with tokens × slots. These two are the number of scores in a block, queries × slots: 2^22 on a CPU,
# where their 16 MB fit into the cache, and 2^26 on other devices, where fewer and larger products are faster.
CPU_BLOCK = 2**22
LARGE_BLOCK = 2**26
# The slots of a block are counted as if it had at most this many queries. With fewer queries, as in decoding, a block
# has more slots; with more queries it has no fewer slots, and the queries are spread over several blocks.
MANY_QUERIES = 1024


# The gate of next tokens starts nearly closed: σ(−4) is 0.018. It never opens wholly, so that log(1 − g) is finite.
CLOSED = -4.0
WIDEST = 0.999


@dataclass(frozen=True)
class Retrieval:
    """The k best slots of every position, and softmax(a) over them."""

    slots: Int[Tensor, "P k"]
    weights: Float[Tensor, "P k"]


class Hippocampus(EventStore):
    """Content-addressed store of surprising cortical states: `recall` and `propose` are pure, `commit` writes.

    The slots are an `EventStore`. What the paper's memory lacks is in docs/memory.md and absent unless switched on.
    """

    threshold: Tensor
    following: Tensor
    chunks: Tensor

    def __init__(self, config: TRC2Config) -> None:
        d_model, key_dim = config.d_model, config.memory_key_dim
        notes: dict[str, tuple[int, ...]] = {}
        if config.predicts_from_memory:
            notes["following"] = ()
        if config.refreshes:
            notes["chunks"] = (2,)
        super().__init__(
            config.memory_slots,
            key_dim,
            d_model,
            window=config.memory_read_window,
            reservoir=config.memory_reservoir_slots,
            seed=config.replay_seed or 0,
            notes=notes,
            counts_updates=config.memory_threshold_correction,
        )
        self.top_k, self.read_chunk = config.memory_top_k, config.memory_read_chunk
        self.chunk_length = config.replay_chunk_length
        self.writes_per_sequence = config.writes_per_sequence
        self.keep_target = min(1.0, config.target_writes_per_sequence / config.writes_per_sequence)
        self.threshold_decay = config.write_threshold_decay

        if config.has_readout:
            self.query = nn.Linear(d_model, key_dim, bias=False)
            self.output = ScaledLinear(d_model, d_model)
            self.output_gate = nn.Parameter(torch.zeros(d_model))
        self.has_readout = config.has_readout
        self.critic = Critic(config)
        # Fixed random maps: the memory stays a nonparametric store over cortical features.
        self.write_key = Matrix(d_model, key_dim).requires_grad_(False)
        self.write_value = Matrix(d_model, d_model).requires_grad_(False)

        self.register_buffer("threshold", torch.zeros(()))
        self.predicts, self.refreshes = config.predicts_from_memory, config.refreshes
        if self.predicts:
            self.next_gate = nn.Parameter(torch.zeros(d_model))
            self.next_gate_bias = nn.Parameter(torch.full((1,), CLOSED))

    def forget(self) -> None:
        """Empty the store and start with a fresh threshold; what is left in the slots is never read."""
        self.cursor.reset()
        self.threshold.zero_()

    # ------------------------------------------------------------------------------------------------------ reading

    def reading(self) -> list[Tensor]:
        """The parameters that an empty memory leaves idle."""
        always = [self.query.weight, self.output.weight, self.output_gate]
        return [*always, self.next_gate, self.next_gate_bias] if self.predicts else always

    def recall(self, hidden: Float[Tensor, "P D"], found: Retrieval | None = None) -> Float[Tensor, "P D"]:
        """M = (R W_O) ⊙ σ(g_hip), where R mixes the values of the k_H best matching slots in view.

        Whoever has already called `retrieve` hands over what it found.
        """
        return self.output(self.read(hidden, found), torch.sigmoid(self.output_gate))

    def read(self, hidden: Float[Tensor, "P D"], found: Retrieval | None = None) -> Float[Tensor, "P D"]:
        """R = Σ_i softmax(a)_i V_i over the exact top-k_H slots; exactly 0 while the memory is empty."""
        found = self.retrieve(hidden) if found is None else found
        if found is None:
            return torch.zeros_like(hidden)
        values = self.values.to(found.weights.dtype)
        mixed = F.embedding_bag(found.slots, values, per_sample_weights=found.weights, mode="sum")
        return mixed.to(hidden.dtype)

    def retrieve(self, hidden: Float[Tensor, "P D"]) -> Retrieval | None:
        """The top-k_H slots of every position; None while the memory is empty."""
        if torch.compiler.is_compiling():
            return self._retrieve_masked(hidden)
        if not (window := self.read_ranges()):
            return None
        query = at_least_float32(self.query(hidden)) / math.sqrt(self.keys.shape[1])
        with torch.autocast(query.device.type, enabled=False):  # a float32 island: half scores pick other slots
            slots = self.search(query.detach(), window)
        # Selecting carries no gradient; only the selected scores are formed again with one.
        scores = (query.unsqueeze(1) * self.keys[slots].to(query.dtype)).sum(dim=-1)
        return Retrieval(slots, scores.softmax(dim=-1))

    def mixture(self, states: Float[Tensor, "Q D"], found: Retrieval) -> Mixture:
        """g softmax(a)_i for the token that followed slot i, with g = σ(⟨w, state⟩ + b) from the final states.

        A slot that does not know its next token leaves its share to the model.
        """
        wide = at_least_float32(states)
        drive = (wide * self.next_gate.to(wide.dtype)).sum(dim=-1, keepdim=True) + self.next_gate_bias.to(wide.dtype)
        tokens = self.following[found.slots]
        shares = WIDEST * torch.sigmoid(drive) * found.weights * (tokens != UNKNOWN)
        return Mixture(shares, tokens.clamp_min(0))

    def _retrieve_masked(self, hidden: Float[Tensor, "P D"]) -> Retrieval:
        """`retrieve` for a compiled graph: all slots are scored and those out of view masked.

        No shape depends on the counters, so what is read follows them without compiling anew. Slots out of view, all
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

    # ------------------------------------------------------------------------------------------------------ proposing

    def propose(
        self,
        states: Float[Tensor, "B T D"],
        valid: Bool[Tensor, "B T"] | None,
        tokens: Int[Tensor, "B T"] | None = None,
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
            notes={} if tokens is None else self._notes(tokens, valid, row[real], picked[real]),
        )
        return appraisal, proposal

    def _notes(
        self,
        tokens: Int[Tensor, "B T"],
        valid: Bool[Tensor, "B T"] | None,
        row: Int[Tensor, " N"],
        place: Int[Tensor, " N"],
    ) -> dict[str, Int[Tensor, "N ..."]]:
        """What is noted beside an event, where a setting asks for it: the next token, the chunk and the place in it."""
        notes: dict[str, Tensor] = {}
        if self.predicts:
            known = tokens if valid is None else tokens.masked_fill(~valid, UNKNOWN)
            notes["following"] = F.pad(known[:, 1:], (0, 1), value=UNKNOWN)[row, place]
        if self.refreshes:
            # Replay runs all tokens of a chunk but the last, so these are what a chunk is known by.
            per_row = tokens.shape[1] // self.chunk_length
            prints = fingerprints(cut_chunks(tokens, self.chunk_length)[:, :-1]).view(tokens.shape[0], per_row)
            chunk, offset = place // self.chunk_length, place % self.chunk_length
            is_run = (chunk < per_row) & (offset < self.chunk_length - 1)
            of_chunk = F.pad(prints, (0, 1), value=UNKNOWN)[row, chunk.clamp_max(per_row)]
            notes["chunks"] = torch.stack((of_chunk, offset), dim=1).where(is_run.unsqueeze(1), UNKNOWN)
        return notes

    def refresh(self, states: Float[Tensor, "R L D"], tokens: Int[Tensor, "R L"]) -> Refresh | None:
        """Detached states of replayed chunks for the slots that came from them; changes nothing."""
        if not self.refreshes or tokens.shape[1] != self.chunk_length - 1:
            return None
        row, slots = (fingerprints(tokens).unsqueeze(1) == self.chunks[:, 0]).nonzero(as_tuple=True)
        return Refresh(slots, states[row, self.chunks[slots, 1]])

    # ------------------------------------------------------------------------------------------------------ writing

    @torch.no_grad()
    def commit(self, pending: Sequence[Pending], ranks: Ranks = ALONE) -> WriteReport:
        """Move the threshold by the union of all candidates of all ranks, then write those above it, in order.

        τ ← β τ + (1 − β) Quantile(candidates, 1 − ρ_keep);  write where s > τ.

        Scores are gathered first. They give every rank the same τ, so each knows which of its own candidates survive,
        and only those travel.
        """
        self._rewrite(pending, ranks)
        own = _union(pending, self.values[:0], self.notes)
        scores, facts = ranks.gather(own.scores, own.facts)
        if scores.numel() == 0:
            return WriteReport(threshold=float(self.threshold), fill=self.count / self.num_slots)
        raw_writes = int((scores > self.threshold).sum())
        quantile = torch.quantile(scores, 1.0 - self.keep_target)
        decay = self._next_decay()
        self.threshold.mul_(decay).add_((1.0 - decay) * quantile)
        kept = own.scores > self.threshold
        notes = [own.notes[name][kept] for name in self.notes]
        states, origins, *notes = ranks.gather(own.states[kept], own.origins[kept], *notes)
        self.write(states, origins, dict(zip(self.notes, notes, strict=True)))
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

    def _next_decay(self) -> float:
        """β. Corrected for the start at 0, update n has 1 − (1 − β) / (1 − β^n), which makes τ Adam's τ / (1 − β^n)."""
        if self.cursor.updates is None:
            return self.threshold_decay
        self.cursor.updates += 1
        return corrected_decay(self.threshold_decay, int(self.cursor.updates))

    def _rewrite(self, pending: Sequence[Pending], ranks: Ranks) -> None:
        """Give the slots of replayed chunks today's keys and values, before new events move anything."""
        if not self.refreshes:
            return
        refreshes = [waiting.proposal.refresh for waiting in pending if waiting.proposal.refresh is not None]
        slots = torch.cat([self.origins[:0, 0], *(refresh.slots for refresh in refreshes)])
        states = torch.cat([self.values[:0], *(refresh.states for refresh in refreshes)])
        slots, states = ranks.gather(slots, states)
        self.replace(slots.cpu(), self._projected(states))

    @torch.no_grad()
    def write(
        self,
        states: Float[Tensor, "N D"],
        origins: Int[Tensor, "N 4"] | None = None,
        notes: Mapping[str, Tensor] | None = None,
    ) -> None:
        """K = X W_K, V = X W_V, inserted in order."""
        total = states.shape[0]
        if origins is None:
            origins = torch.full((total, len(ORIGIN_FIELDS)), UNKNOWN, device=states.device)
        rows = {"origins": origins}
        for name, shape in self.notes.items():
            given = None if notes is None else notes.get(name)
            rows[name] = torch.full((total, *shape), UNKNOWN, device=states.device) if given is None else given
        first = 0 if self.num_reservoir else max(0, total - self.num_slots)
        self.insert({**self._projected(states[first:]), **{name: row[first:] for name, row in rows.items()}}, total)

    def _projected(self, states: Float[Tensor, "N D"]) -> dict[str, Tensor]:
        events = states.to(self.write_key.weight.dtype)
        return {
            "keys": self.write_key(events).to(self.keys.dtype),
            "values": self.write_value(events).to(self.values.dtype),
        }


def corrected_decay(decay: float, update: int) -> float:
    """The decay of update n = 1, 2, … under which an average that starts at 0 forgets that it did."""
    return 1.0 - (1.0 - decay) / (1.0 - decay**update)


@dataclass(frozen=True)
class _Union:
    """The candidates of several micro-batches, end to end; of each batch Σ s, max s and the number of tokens."""

    scores: Float[Tensor, " N"]
    states: Float[Tensor, "N D"]
    origins: Int[Tensor, "N 4"]
    facts: Float[Tensor, "A 3"]
    notes: dict[str, Int[Tensor, "N ..."]]


def _union(pending: Sequence[Pending], nothing: Float[Tensor, "0 D"], notes: Mapping[str, tuple[int, ...]]) -> _Union:
    proposals = [waiting.proposal for waiting in pending]
    if not proposals:
        none = {name: nothing.new_empty(0, *shape).long() for name, shape in notes.items()}
        return _Union(nothing[:, 0], nothing, nothing.new_empty(0, 4).long(), nothing.new_empty(0, 3).double(), none)
    return _Union(
        scores=torch.cat([proposal.scores for proposal in proposals]),
        states=torch.cat([proposal.states for proposal in proposals]),
        origins=torch.cat([waiting.origins for waiting in pending]),
        facts=torch.stack([_facts(proposal) for proposal in proposals]),
        notes={name: torch.cat([proposal.notes[name] for proposal in proposals]) for name in notes},
    )


def _facts(proposal: Proposal) -> Float[Tensor, " 3"]:
    """Σ s, max s and the number of tokens; padding adds exact zeros to the sum."""
    surprise = proposal.surprise
    tokens = torch.as_tensor(proposal.num_tokens, dtype=torch.float64, device=surprise.device)
    return torch.stack((surprise.sum().double(), surprise.max().double(), tokens))
