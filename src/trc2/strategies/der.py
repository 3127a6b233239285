"""Dark experience replay (DER++): predictions on stored text stay as they were, and stored text is learned again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.config import BackboneConfig, StrategyConfig, TrainConfig
from trc2.config.section import NonNegative, Size
from trc2.nn.segments import pack
from trc2.nn.trunk import LearningPass, Loss
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.replay.reservoirs import last_for_each, uniform_slots
from trc2.replay.stores import mark_unlabelled, read_chunks
from trc2.strategies.base import Strategy
from trc2.system.rng import keyed_generator


class Settings(StrategyConfig):
    name: Literal["der"] = "der"
    alpha: NonNegative = Field(0.5, description="α: weight of the squared distance to the stored logits")
    beta: NonNegative = Field(0.5, description="β: weight of the stored text's own loss. 0 gives DER without ++.")
    chunks: Size = Field(512, description="rows the reservoir holds")
    chunk_length: Annotated[int, Field(ge=2, le=2**31 - 1)] = Field(64, description="tokens of a stored row")
    batch_size: Size = Field(4, description="stored rows per term and micro-batch")
    top_k: Size = Field(
        64, description="number of largest logits kept per position. All logits are kept if V is smaller."
    )

    def check_run(self, model: BackboneConfig, train: TrainConfig) -> None:
        if self.chunk_length > train.sequence_length:
            raise ValueError(
                f"strategy.chunk_length={self.chunk_length} is longer than train.sequence_length="
                f"{train.sequence_length}, so nothing would ever be stored: choose at most {train.sequence_length}."
            )

    def replayed_tokens(self, model: BackboneConfig, train: TrainConfig) -> int:
        return 2 * self.batch_size * (self.chunk_length - 1) * train.micro_batches


class DarkExperience(Strategy):
    """α ‖z − z*‖² / K on some stored rows and β L_LM on others. z* are the logits at the time a row was stored.

    The reservoir is the strategy's own and holds the K largest logits of every position, because all V of them would
    be thousands of times larger than the text. Rows of a step enter it at the step's end, those of all ranks alike.
    """

    settings: Settings

    def __init__(self, model: Backbone, settings: Settings) -> None:
        super().__init__(model, settings)
        self.seed = model.config.replay_seed or 0
        self.k = min(settings.top_k, model.config.vocab_size)
        rows, length = settings.chunks, settings.chunk_length
        self.tensors = {
            "tokens": torch.zeros(rows, length, dtype=torch.int64),
            "names": torch.zeros(rows, length - 1, self.k, dtype=torch.int32),
            "logits": torch.zeros(rows, length - 1, self.k),
            "seen": torch.zeros((), dtype=torch.int64),
        }
        self.staged: list[tuple[Tensor, Tensor, Tensor]] = []

    def losses(self, seen: LearningPass) -> Sequence[Loss]:
        self._stage(seen)
        if int(self.tensors["seen"]) == 0:
            return ()
        first, second = self._draw("alpha"), self._draw("beta")
        old, device = read_chunks(self.tensors["tokens"][torch.cat((first, second))]), seen.x.device
        hidden = self.model.trunk(pack([old.x.to(device).contiguous()]), with_losses=False).hidden
        half = old.x[: len(first)].numel()
        head = self.model.trunk.head
        logits = head.logits(hidden[:half]).float()
        names = self.tensors["names"][first].flatten(0, 1).long().to(logits.device)
        wanted = self.tensors["logits"][first].flatten(0, 1).to(logits.device)
        squares = (logits.gather(1, names) - wanted).square()
        is_label = (old.targets[: len(first)] != IGNORE_INDEX).reshape(-1)
        if not bool(is_label.all()):
            squares = squares[is_label.to(device)]
        dark = squares.mean() if squares.numel() else squares.sum()
        again = old.targets[len(first) :].reshape(-1)
        num_labels = int((again != IGNORE_INDEX).sum())
        text = head.loss_sum(hidden[half:], again.to(device)) / max(1, num_labels)
        return Loss("der", dark, self.settings.alpha), Loss("der_text", text, self.settings.beta)

    @torch.no_grad()
    def _stage(self, seen: LearningPass) -> None:
        """Stage the start of every row without padding, with the model's current logits."""
        length = self.settings.chunk_length
        rows = torch.arange(len(seen.x)) if seen.valid is None else seen.valid[:, :length].all(dim=1).nonzero()[:, 0]
        if seen.x.shape[1] < length or not len(rows):
            return
        hidden = seen.hidden.unflatten(0, seen.x.shape)[rows, : length - 1]
        values, names = self.model.trunk.head.logits(hidden).float().topk(self.k, dim=-1)
        is_ignored = seen.labels.view(seen.x.shape)[rows, : length - 1] == IGNORE_INDEX
        tokens = seen.x[rows, :length]
        marked = torch.cat((tokens[:, :1], mark_unlabelled(tokens[:, 1:], is_ignored)), dim=1)
        self.staged.append((marked.cpu(), names.int().cpu(), values.cpu()))

    def _draw(self, word: str) -> Int[Tensor, " B"]:
        filled = min(int(self.tensors["seen"]), self.settings.chunks)
        clock = self.model.clock
        rng = keyed_generator(f"der {word}", self.seed, int(clock.step), int(clock.micro_step))
        return torch.randint(filled, (self.settings.batch_size,), generator=rng)

    def after_step(self) -> None:
        """Move staged rows into the reservoir, where every row ever seen has the same probability to stay."""
        tokens, names, logits = self._gathered()
        self.staged.clear()
        first = int(self.tensors["seen"])
        rng = keyed_generator("der reservoir", self.seed, first)
        draws = torch.rand(len(tokens), dtype=torch.float64, generator=rng)
        slots, chosen = last_for_each(uniform_slots(first, self.settings.chunks, draws))
        kept = slots < self.settings.chunks
        for name, rows in (("tokens", tokens), ("names", names), ("logits", logits)):
            self.tensors[name][slots[kept]] = rows[chosen[kept]]
        self.tensors["seen"] += len(tokens)

    def skip_step(self) -> None:
        self.staged.clear()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = dict(tensors)  # on the host, wherever the model is

    def _gathered(self) -> tuple[Int[Tensor, "n L"], Int[Tensor, "n M K"], Float[Tensor, "n M K"]]:
        empty = tuple(self.tensors[name][:0] for name in ("tokens", "names", "logits"))
        parts = [torch.cat(kind) for kind in zip(empty, *self.staged, strict=True)]
        tokens, names, logits = (self.model.ranks.gather(part)[0] for part in parts)
        return tokens, names, logits


build = DarkExperience
