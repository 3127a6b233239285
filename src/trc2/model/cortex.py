"""The wiring: early columns, one read of the memory, late columns. Tensors in, values out. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trc2.config import TRC2Config
from trc2.distributed.group import ALONE, Ranks
from trc2.model.column import CorticalColumn
from trc2.model.critic import Appraisal
from trc2.model.feedback import FeedbackGate
from trc2.model.hippocampus import Hippocampus
from trc2.model.thalamus import ThalamicRouter
from trc2.nn.decoding import Decoding, KeyValues, RunningSum
from trc2.nn.experts import load_balance
from trc2.nn.init import init_weights, normal_
from trc2.nn.norm import RMSNorm
from trc2.nn.rope import RotaryTable
from trc2.nn.segments import Packed, Segment
from trc2.nn.trunk import Loss, Pending, Trunk, TrunkOutput, WriteReport
from trc2.ops.zero_gradient import anchor


class Cortex(Trunk):
    """Embedding → L cortical columns with thalamic and hippocampal feedback → normalised state for the head.

    A second segment, if there is one, holds replayed chunks: they share every position-wise product with the batch,
    but they are not counted in the balance, appraised or remembered.
    """

    def __init__(self, config: TRC2Config, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.rotary = RotaryTable(config.max_positions, config.head_dim, config.rotary_base)
        columns = [CorticalColumn(config, index) for index in range(config.num_columns)]
        self.columns: Sequence[CorticalColumn] = nn.ModuleList(columns)  # type: ignore[assignment]
        self.thalamus = ThalamicRouter(config) if config.has_router else None
        self.hippocampus = Hippocampus(config) if config.memory else None
        self.feedback = FeedbackGate(config) if config.has_readout else None
        self.final_norm = RMSNorm(config.d_model, config.norm_eps)
        self._init(generator)

    def _init(self, generator: torch.Generator | None) -> None:
        init_weights(self, self.config.num_columns, generator)
        if self.hippocampus is not None:
            for frozen in (self.hippocampus.write_key, self.hippocampus.write_value):
                normal_(frozen.weight, self.config.d_model**-0.5, generator)
            self.hippocampus.critic.copy_to_slow()

    def forward(
        self, packed: Packed, *, with_losses: bool = True, read_memory: bool = True, decoding: Decoding | None = None
    ) -> TrunkOutput:
        """`with_losses=False` leaves out critic, proposal and balance.

        `decoding` holds the states of the columns and of the routers between them.
        """
        segments = packed.segments
        # Under `replay_path: cortex` replayed tokens run without feedback: only the batch has modulated rows.
        modulated = segments if self.config.replay_path == "full" else segments[:1]
        rotation = self.rotary(packed.positions)
        hidden = self.embedding(packed.tokens)
        counted = packed.counted
        balance = hidden.new_zeros((), dtype=torch.float32 if hidden.dtype != torch.float64 else torch.float64)
        appraisal, proposal = None, None
        thalamic: Tensor | None = None
        hippocampal: Tensor | None = None

        for index, column in enumerate(self.columns):
            past, sums = self._states_of(index, decoding)
            out = self.run(column, hidden, _modulation(thalamic, hippocampal), rotation, segments, past)
            hidden = out.hidden
            if with_losses:
                balance = balance + load_balance(out.routing, counted)
            if self.hippocampus is not None and index + 1 == self.config.num_early_columns:
                if with_losses:
                    main = segments[0]
                    appraisal, proposal = self.hippocampus.propose(main.of(hidden.detach()), main.valid)
                if read_memory:
                    hidden, hippocampal = self._remember(hidden, modulated)
            if self.thalamus is not None and index + 1 < len(self.columns):
                thalamic = self.thalamus(column.report(_rows(hidden, modulated)), modulated, sums)
        losses = self._losses(balance, appraisal) if with_losses else ()
        return TrunkOutput(self.final_norm(hidden), losses, proposal)

    def _losses(self, balance: Float[Tensor, ""], appraisal: Appraisal | None) -> tuple[Loss, ...]:
        """λ_router (λ_lb Σ A), λ_td L_td and λ_pred L_pred. The last two are 0 without a memory."""
        config, zero = self.config, self.embedding.weight.new_zeros(())
        return (
            Loss("load_balance", config.lambda_load_balance * balance, config.lambda_router),
            Loss("td", zero if appraisal is None else appraisal.loss_td, config.lambda_td),
            Loss("predictor", zero if appraisal is None else appraisal.loss_predictor, config.lambda_predictor),
        )

    def _remember(
        self, hidden: Float[Tensor, "P D"], modulated: tuple[Segment, ...]
    ) -> tuple[Float[Tensor, "P D"], Float[Tensor, "Q D"] | None]:
        """F_hip from the early state. An empty memory gives exactly 0, and a zero gradient to all of its path."""
        if self.hippocampus is None or self.feedback is None:
            return hidden, None
        early = _rows(hidden, modulated)
        retrieval = self.hippocampus.retrieve(early)
        if retrieval is None:
            idle = [*self.feedback.parameters(), *self.hippocampus.reading()]
            return anchor(hidden, *idle), None
        return hidden, self.feedback(early, self.hippocampus.recall(early, retrieval))

    def units(self) -> list[nn.Module]:
        """The columns, and the L5 maps within them, which run on their own: a column reports after its output."""
        reporting = [column.layer5 for column in self.columns if column.layer5 is not None]
        return [*reporting, *self.columns]

    def layers(self) -> list[nn.Module]:
        return list(self.columns)

    def new_states(self) -> list[KeyValues | RunningSum]:
        """What decoding keeps: keys and values per column, and the router's running sum after every column."""
        return [*(KeyValues() for _ in self.columns), *(RunningSum() for _ in self.columns)]

    def _states_of(self, index: int, decoding: Decoding | None) -> tuple[KeyValues | None, RunningSum | None]:
        if decoding is None:
            return None, None
        return decoding.states[index], decoding.states[len(self.columns) + index]  # type: ignore[return-value]

    def commit(self, pending: Sequence[Pending], ranks: Ranks = ALONE) -> WriteReport:
        return WriteReport() if self.hippocampus is None else self.hippocampus.commit(pending, ranks)

    def after_step(self) -> None:
        """Move the slow heads towards the fast ones."""
        if self.hippocampus is not None:
            self.hippocampus.critic.update_slow()

    @property
    def has_memory(self) -> bool:
        return self.hippocampus is not None

    @property
    def num_events(self) -> int:
        return 0 if self.hippocampus is None else self.hippocampus.count

    def subsystems(self) -> dict[str, list[nn.Module]]:
        thalamus = [] if self.thalamus is None else [self.thalamus]
        hippocampus: list[nn.Module] = [part for part in (self.hippocampus, self.feedback) if part is not None]
        return {
            "embedding and head": [self.embedding, self.final_norm],
            "columns": [self.rotary, *self.columns],
            "thalamus": list(thalamus),
            "hippocampus": hippocampus,
        }

    def unused_parameters(self) -> list[str]:
        """Trainable tensors no loss can reach: the last column's L5, kept because the paper's counts contain it."""
        if not self.config.thalamus:
            return []
        return [f"columns.{len(self.columns) - 1}.layer5.weight"]

    def critic_tensors(self) -> list[str]:
        """The fast predictor and value head, which see detached states."""
        prefix = "hippocampus.critic."
        return [name for name, p in self.named_parameters() if name.startswith(prefix) and p.requires_grad]


def _rows(hidden: Float[Tensor, "P D"], segments: tuple[Segment, ...]) -> Float[Tensor, "Q D"]:
    """The leading packed rows that the given segments cover."""
    return hidden[: segments[-1].stop]


def _modulation(thalamic: Tensor | None, hippocampal: Tensor | None) -> Tensor | None:
    """Z = F_thal + F_hip"""
    if thalamic is None or hippocampal is None:
        return hippocampal if thalamic is None else thalamic
    return thalamic + hippocampal
