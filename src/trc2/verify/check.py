"""What is verified, and how a verdict is written down."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from trc2.backbones.shell import Backbone
from trc2.errors import UserError
from trc2.model.hippocampus import Hippocampus
from trc2.system.rng import keyed_generator

EXACT = 1e-12  # "numerical precision" in float64: sums may be taken in another order
FILLED_EVENTS = 256

Fill = Literal["empty", "filled"]


@dataclass(frozen=True)
class Check:
    """One measured number and the bound it must keep. `passed` is None where the check does not apply."""

    group: str
    name: str
    claim: str
    measured: float | None = None
    relation: Literal["<=", ">", "=="] = "<="
    bound: float = 0.0
    note: str = ""

    @property
    def passed(self) -> bool | None:
        if self.measured is None:
            return None
        if self.measured != self.measured:
            return False  # NaN keeps no bound
        return {"<=": self.measured <= self.bound, ">": self.measured > self.bound, "==": self.measured == self.bound}[
            self.relation
        ]


class ModelUnderTest:
    """A model under test. Every check works on a fresh float64 clone, so that none can disturb another."""

    def __init__(self, model: Backbone, seed: int = 0, batch: int = 2, length: int | None = None) -> None:
        self.model = model
        self.seed, self.batch = seed, batch
        shortest = 24 if model.replay is None else model.replay.chunk_length
        self.length = min(model.config.max_positions, max(24, shortest)) if length is None else length
        if self.length < 3:
            raise UserError(f"The model reads only {self.length} tokens, too few to disturb a suffix: allow 3 or more.")

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def rounding(self) -> float:
        """What two ways to compute the same may differ by in this model."""
        return max(EXACT, self.model.trunk.rounding)

    @property
    def has_memory(self) -> bool:
        return memory_of(self.model) is not None

    @property
    def has_readout(self) -> bool:
        memory = memory_of(self.model)
        return memory is not None and memory.has_readout

    @property
    def has_replay(self) -> bool:
        return self.model.replay is not None

    @property
    def fills(self) -> tuple[Fill, ...]:
        """States in which causality is tested: with empty memory and stores their paths would pass vacuously."""
        return ("empty", "filled") if self.has_readout or self.has_replay else ("empty",)

    def label(self, name: str, fill: Fill) -> str:
        return f"{name} ({fill})" if len(self.fills) > 1 else name

    def fresh(self, fill: Fill = "empty") -> Backbone:
        """A clone on the CPU in float64, without dropout and with nothing pending.

        Its memory and replay stores are emptied, or hold events and chunks: its own, else random ones.
        """
        clone = copy.deepcopy(self.model).to("cpu", torch.float64)
        for module in clone.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "attention_dropout", None), float):  # transformers' attention keeps a number
                module.attention_dropout = 0.0  # type: ignore[assignment]
        clone.discard_pending_write()
        memory, stores = memory_of(clone), clone.replay
        rng = keyed_generator("verify fill", self.seed)
        if stores is not None and stores.share is not None:
            stores.share.fill_(0.5)  # a small share of a small batch is often no chunk at all
        if memory is not None and fill == "empty":
            memory.forget()
        elif memory is not None and memory.count == 0:
            shape = (min(memory.num_slots, FILLED_EVENTS), memory.values.shape[1])
            memory.write(torch.randn(shape, generator=rng, dtype=torch.float64))
        if stores is not None and fill == "empty":
            stores.seen.zero_()
        elif stores is not None and stores.num_seen == 0:
            shape = (2 * int(stores.batch_size), stores.chunk_length)
            stores.commit(torch.randint(self.vocab_size, shape, generator=rng, dtype=torch.int32))
        return clone

    def tokens(self, name: str, *, length: int | None = None) -> Tensor:
        """A random batch. The same name gives the same tokens."""
        shape = (self.batch, length or self.length)
        return torch.randint(self.vocab_size, shape, generator=keyed_generator("verify", self.seed, name))

    def positions(self) -> list[int]:
        """Positions at which a suffix is disturbed."""
        last = self.length - 2
        return sorted({0, min(self.length // 3, last), min(self.length // 2, last), last})

    def with_other_suffix(self, x: Tensor, position: int, count: int | None = None) -> Tensor:
        """x with tokens after `position` replaced, all of them or the first `count`, each by a different id."""
        other = x.clone()
        stop = x.shape[1] if count is None else position + 1 + count
        shift = torch.randint(
            1,
            self.vocab_size,
            x[:, position + 1 : stop].shape,
            generator=keyed_generator("suffix", self.seed, position),
        )
        other[:, position + 1 : stop] = (x[:, position + 1 : stop] + shift) % self.vocab_size
        return other


def memory_of(model: Backbone) -> Hippocampus | None:
    memories = [module for module in model.modules() if isinstance(module, Hippocampus)]
    return memories[0] if memories else None


def gap(a: Tensor, b: Tensor) -> float:
    """‖a − b‖_∞"""
    return float((a - b).detach().abs().max()) if a.numel() else 0.0


def largest(values: list[float]) -> float:
    """The maximum. Unlike Python's own, a NaN anywhere makes it NaN."""
    return float(torch.tensor(values, dtype=torch.float64).max())


def smallest(values: list[float]) -> float:
    """The minimum, NaN if there is one."""
    return float(torch.tensor(values, dtype=torch.float64).min())


def state_of(module: nn.Module | None) -> dict[str, Tensor]:
    """A copy of everything a module would save."""
    return {} if module is None else {name: tensor.clone() for name, tensor in module.state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """How many saved tensors differ in any bit."""
    return float(sum(not torch.equal(before[name], after[name]) for name in before))


def train_forward(model: Backbone, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """One micro-step: forward and backward, no flush."""
    model.train()
    _, aux = model(x, targets=y)
    aux["loss"].backward()
    return aux


def train_step(model: Backbone, batches: list[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer) -> None:
    """The paper's order: all micro-steps, flush, optimizer, slow targets."""
    optimizer.zero_grad()
    for x, y in batches:
        train_forward(model, x, y)
    model.flush_pending_write()
    optimizer.step()
    model.update_slow_targets()


def skipped(group: str, name: str, claim: str, why: str) -> list[Check]:
    return [Check(group, name, claim, note=f"does not apply: {why}")]


CheckFunction = Callable[[ModelUnderTest], list[Check]]
