"""Static budget: parameters and bytes of every subsystem, ours and in the paper's accounting."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from trc2.backbones.saved import outline
from trc2.config import BackboneConfig, TRC2Config
from trc2.nn.experts import RoutedExperts

GIB = 2**30


@dataclass(frozen=True)
class Part:
    """What one subsystem owns."""

    trainable: int
    frozen: int
    bytes: int

    @property
    def total(self) -> int:
        return self.trainable + self.frozen


def static_budget(config: BackboneConfig) -> dict[str, Part]:
    """Parameters and static bytes (parameters and buffers, frozen ones included) per subsystem.

    The small counters of the shell count as replay's.
    """
    net = outline(config)
    groups = net.trunk.subsystems()
    owner = {id(tensor): name for name, modules in groups.items() for module in modules for tensor in _tensors(module)}
    first = next(iter(groups))
    inside = {id(tensor): owner.get(id(tensor), first) for tensor in _tensors(net.trunk)}
    sums = {name: [0, 0, 0] for name in (*groups, "replay")}
    for parameter in net.parameters():
        entry = sums[inside.get(id(parameter), "replay")]
        entry[0 if parameter.requires_grad else 1] += parameter.numel()
    for tensor in _tensors(net):
        sums[inside.get(id(tensor), "replay")][2] += tensor.nbytes
    return {name: Part(*values) for name, values in sums.items()}


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def active_parameters(config: BackboneConfig) -> tuple[int, int]:
    """Parameters a token meets, and those of them that are neither embedding nor positions.

    Of routed experts only the selected ones are met. Everything else is, frozen or not.
    """
    net = outline(config)
    idle = 0.0
    for module in net.modules():
        if isinstance(module, RoutedExperts):
            owned = sum(parameter.numel() for parameter in module.experts.parameters())
            idle += owned * (1 - module.num_active / len(module.experts))
    active = sum(parameter.numel() for parameter in net.parameters()) - round(idle)
    tables = sum(m.weight.numel() for m in net.modules() if isinstance(m, nn.Embedding))
    return active, active - tables


def unreachable(config: BackboneConfig) -> int:
    """Parameters that the complete model (all switches on) has and this one does not."""
    return num_parameters(config.complete()) - num_parameters(config) if config.switches else 0


def num_parameters(config: BackboneConfig) -> int:
    return sum(parameter.numel() for parameter in outline(config).parameters())


# --------------------------------------------------------------------------------------------------------- the paper


@dataclass(frozen=True)
class PaperRow:
    """One row of the paper's component table and the model's entry in its parameter column (millions)."""

    recipe: str
    millions: int
    parameters: tuple[float, float, float]
    memory: tuple[float, float, float]


PAPER_ROWS = (
    PaperRow("paper_d256_l24", 149, (99.67, 0.31, 0.01), (88.52, 11.46, 0.01)),
    PaperRow("paper_d512_l10", 254, (99.24, 0.72, 0.03), (89.22, 10.75, 0.03)),
    PaperRow("paper_d768_l4", 226, (97.94, 1.96, 0.09), (82.78, 17.14, 0.08)),
    PaperRow("paper_d768_l8", 408, (98.96, 0.99, 0.05), (90.58, 9.37, 0.04)),
    PaperRow("paper_d1024_l6", 560, (98.67, 1.27, 0.06), (91.03, 8.91, 0.06)),
)
PAPER_COLUMNS = ("columns", "hippocampus", "thalamus")


def paper_accounting(config: TRC2Config) -> dict[str, tuple[int, int]]:
    """(trainable parameters, bytes) per subsystem as the paper counts them.

    Bytes are float32 trainable parameters plus persistent buffers: keys and values, int64 replay chunks, and in every
    column a float32 cos + sin cache of max_positions × head width. Frozen tensors, embedding and head are left out.
    """
    trainable = {name: part.trainable for name, part in static_budget(config).items()}
    caches = config.num_columns * config.max_positions * config.head_dim * 2 * 4
    events = config.memory_slots * (config.memory_key_dim + config.d_model) * 4 if config.memory else 0
    chunks = (config.replay_recent_chunks + config.replay_long_chunks) * config.replay_chunk_length * 8
    extra = {"columns": caches, "hippocampus": events + (chunks if config.replay else 0), "thalamus": 0}
    return {name: (trainable[name], 4 * trainable[name] + extra[name]) for name in PAPER_COLUMNS}


def percentages(values: list[int]) -> list[float]:
    """Shares of the sum in percent, with the paper's two digits."""
    return [round(100 * value / sum(values), 2) for value in values]
