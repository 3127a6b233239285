"""Everything that defines a TRC² network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trc2.config.backbone import BackboneConfig, at_most, divides, even_heads, round_up
from trc2.config.section import Decay, Fraction, NonNegative, Positive, Size

PAPER_STEPS = 22_000  # of its stream: C4 10,000, WikiText-103 10,000, GSM8K 2,000
SHORTEST_HORIZON = 10  # steps. A shorter average follows the noise of single batches


def decay_over(steps: float) -> float:
    """The decay of a moving average whose horizon 1/(1 − decay) is this many steps."""
    return 1.0 - 1.0 / max(SHORTEST_HORIZON, steps)


# What TRC² adds to its columns, each with a switch of this name. "Backbone only" is a network without all of them,
# "backbone + replay" one without the first two.
PARTS = ("thalamus", "memory", "replay")


class TRC2Config(BackboneConfig):
    """Everything that defines a TRC² network. `docs/open-points.md` says where each default comes from."""

    switches = PARTS

    name: Literal["trc2"] = "trc2"

    # cortex
    num_columns: Size = Field(4, description="L: cortical columns on top of each other")
    num_heads: Size = Field(8, description="query heads of a column")
    num_kv_heads: Size = Field(4, description="key and value heads. The number must divide num_heads.")
    rotary_base: Positive = Field(10_000.0, description="base of the rotary positions")
    num_experts: Size = Field(8, description="routed experts of a column")
    num_active_experts: Size = Field(2, description="routed experts that work on a token")
    num_shared_experts: Literal[0, 1] = Field(1, description="experts that work on every token")
    d_ff: Size | None = Field(None, description="expert width. None means 8·d_model/3 rounded up to a multiple of 256.")

    # thalamus
    thalamus: bool = Field(True, description="whether columns talk through the thalamic router")
    thalamic_rank: Size | None = Field(None, description="bottleneck width r. None means d_model // 8.")
    thalamic_groups: Size = Field(1, description="groups of the divisive competition. The number must divide the rank.")
    thalamic_inhibition: NonNegative = Field(
        0.5, description='η: strength of the divisive competition. The paper calls it "TRN sparsity".'
    )

    # hippocampal memory
    memory: bool = Field(True, description="whether there is an episodic memory, with critic and feedback")
    memory_slots: Size = Field(32_768, description="events the memory holds")
    memory_key_dim: Size = Field(128, description="width of a slot's key")
    memory_top_k: Size = Field(4, description="slots a query reads")
    memory_read_chunk: Size = Field(
        2048,
        description="slots that are compared at once. The number changes the use of RAM and does not change results.",
    )
    memory_read_window: Size = Field(8192, description="S_max: only this many most recent slots are searched")
    writes_per_sequence: Size = Field(8, description="k_W: candidates a sequence may offer")
    target_writes_per_sequence: Size = Field(2, description="n_target: writes a sequence should end up with")
    threshold_decay: Decay | None = Field(
        None,
        description="decay of the write threshold τ. None means an average over 1/220 of the stream's steps, or "
        "0.99 for a model without a stream.",
    )
    discount: Fraction = Field(0.95, description="γ of the temporal difference")
    td_clip: Positive = Field(1.0, description="the largest temporal difference that counts")
    slow_decay: Decay | None = Field(
        None,
        description="decay of the slow heads. None means an average over 1/11 of the stream's steps, or 0.9995 "
        "for a model without a stream.",
    )
    gate_top_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.125, description="share of gate channels kept per token. 1 keeps every channel."
    )

    # replay
    replay: bool = Field(True, description="whether chunks of earlier text are stored and trained on again")
    replay_path: Literal["full", "cortex"] = Field(
        "full", description="whether replayed text passes the full network, or the cortex without thalamus and memory"
    )

    # objective
    lambda_td: NonNegative = Field(0.1, description="weight of the value head's loss")
    lambda_predictor: NonNegative = Field(0.1, description="weight of the predictor's loss")

    @model_validator(mode="after")
    def _shapes_fit(self) -> TRC2Config:
        divides("d_model", self.d_model, "num_heads", self.num_heads)
        divides("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads)
        even_heads(self.d_model, self.num_heads)
        at_most("num_active_experts", self.num_active_experts, "num_experts", self.num_experts)
        if self.thalamus:
            if self.rank < 1:
                raise ValueError(f"d_model={self.d_model} gives a thalamic rank of 0: set thalamic_rank to 1 or more.")
            divides("thalamic_rank", self.rank, "thalamic_groups", self.thalamic_groups)
        return self

    def with_horizons(self, steps: int) -> TRC2Config:
        """The moving averages over the same share of a stream as the paper's, where none is set."""
        return self.replace(
            slow_decay=decay_over(steps / 11) if self.slow_decay is None else self.slow_decay,
            threshold_decay=decay_over(steps / 220) if self.threshold_decay is None else self.threshold_decay,
        )

    @property
    def slow_heads_decay(self) -> float:
        """α of the slow heads. The paper's for a model without a stream."""
        return decay_over(PAPER_STEPS / 11) if self.slow_decay is None else self.slow_decay

    @property
    def write_threshold_decay(self) -> float:
        """β of the write threshold τ. The paper's for a model without a stream."""
        return decay_over(PAPER_STEPS / 220) if self.threshold_decay is None else self.threshold_decay

    def memory_bytes_sent(self, rows: int, length: int, micro_batches: int) -> float:
        """Scores of all candidates, totals of every micro-batch, and the events that are written."""
        if not self.memory:
            return 0.0
        candidates = rows * min(self.writes_per_sequence, length)
        survivors = candidates * min(1.0, self.target_writes_per_sequence / self.writes_per_sequence)
        return 4.0 * candidates + 24.0 * micro_batches + survivors * (4.0 * self.d_model + 32.0)

    @property
    def depth(self) -> int:
        return self.num_columns

    @property
    def num_parts(self) -> int:
        return self.num_columns * self.num_experts

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def rank(self) -> int:
        return self.d_model // 8 if self.thalamic_rank is None else self.thalamic_rank

    @property
    def expert_dim(self) -> int:
        return round_up(8 * self.d_model / 3, 256) if self.d_ff is None else self.d_ff

    @property
    def num_early_columns(self) -> int:
        """ℓ_inj = max(1, ⌊2L/3⌋): memory is read after this many columns."""
        return max(1, 2 * self.num_columns // 3)

    @property
    def num_late_columns(self) -> int:
        return self.num_columns - self.num_early_columns

    @property
    def has_router(self) -> bool:
        """A router is built only if some column comes after another one."""
        return self.thalamus and self.num_columns > 1

    @property
    def has_readout(self) -> bool:
        """Memory is read only if there is a late column to receive its feedback."""
        return self.memory and self.num_late_columns > 0

    @property
    def has_critic(self) -> bool:
        return self.memory

    @property
    def read_slots(self) -> int:
        return min(self.memory_slots, self.memory_read_window) if self.memory else 0

    def has_query_shift(self, column: int) -> bool:
        """Whether the column (counted from 0) owns a thalamic query map.

        With the thalamus every column has one, the first too although its feedback is always zero: the paper's counts
        of parameters include it.
        """
        return self.thalamus or (self.has_readout and column >= self.num_early_columns)
