"""On paper: what a run needs on so many devices. Bytes of each, messages between them, hours."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor

from trc2.backbones.registry import activations_of, step_cost
from trc2.backbones.saved import outline
from trc2.config import BackboneConfig, RunConfig
from trc2.ops.head_loss import CHUNK_ELEMENTS, LARGE_CHUNK
from trc2.runs.equal_cost import budget_of
from trc2.runs.schedule import TaskSchedule

ADAM = 2  # moments per weight, in float32
MOST_DEVICES = 1024
# How much of its peak a GPU reaches. The paper's five TRC² rows, 29,000 to 103,000 tokens/s on 4 V100 of 125 TFLOP/s,
# are 2.8 % at width 256 to 19.6 % at width 1024: about in proportion to the width, within a factor of two.
REACHED, REACHED_WIDTH, SPREAD = 0.2, 1024, 2.0
KINDS = (("ddp", False), ("ddp", True), ("fsdp", False), ("fsdp", True))


@dataclass(frozen=True)
class Device:
    """What one device has: bytes, FLOP/s at its best and what share of them it reaches, bytes per second to others."""

    memory: float
    flops: float
    utilisation: float
    bandwidth: float
    is_cpu: bool = False


@dataclass(frozen=True)
class Need:
    """A run on so many devices. `parts` are bytes of each device, `host_bytes` those of each process beside it."""

    devices: int
    parallel: str
    recompute: bool
    micro_batches_per_device: int
    parts: dict[str, float]
    host_bytes: float
    fits: bool
    bytes_sent_per_step: float
    seconds_per_step: float
    tokens_per_second: float
    hours: float
    with_more_micro_batches: bool

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        return values | {"bytes": {**values.pop("parts"), "total": self.total}}


def usual_utilisation(config: BackboneConfig) -> float:
    """What a model of this width may be expected to reach. Right within a factor of `SPREAD`, see above."""
    return REACHED * min(1.0, config.d_model / REACHED_WIDTH)


def all_needs(run: RunConfig, device: Device, most: int = MOST_DEVICES) -> list[Need]:
    """A row for every power of two, each with the simplest way that fits."""
    counts = [2**power for power in range(most.bit_length()) if 2**power <= most]
    counts += [most] if most not in counts else []
    return [need(run, device, count) for count in counts]


def need(run: RunConfig, device: Device, devices: int) -> Need:
    """The first of DDP, DDP with recomputing, FSDP, FSDP with recomputing that fits. The last one if none does."""
    tried = [need_of(run, device, devices, *kind) for kind in KINDS if devices > 1 or kind[0] == "ddp"]
    return next((way for way in tried if way.fits), tried[-1])


def need_of(run: RunConfig, device: Device, devices: int, parallel: str, recompute: bool) -> Need:
    """One way to run it. Where the devices do not divide a step's micro-batches, a step gets enough for all of them."""
    train, budget = run.train, budget_of(run)
    shared = -(-train.micro_batches // devices)
    span = shared * devices / train.micro_batches
    sizes = sizes_of(run.model)
    parts = _parts(run, sizes, device, devices, shared, parallel, recompute)
    messages = _messages(run, sizes, devices, shared, parallel)
    again = _recomputed_share(run) if recompute else 0.0
    compute = budget.training_flops_per_step * span * (1 + again) / (devices * device.flops * device.utilisation)
    seconds = compute + messages / device.bandwidth
    tokens = train.tokens_per_step * span
    total_tokens = train.tokens_per_step * TaskSchedule.of_run(run).total_steps if run.stream is not None else 0
    return Need(
        devices=devices,
        parallel=parallel if devices > 1 else "none",
        recompute=recompute,
        micro_batches_per_device=shared,
        parts=parts,
        host_bytes=sizes.replay,
        fits=sum(parts.values()) <= device.memory,
        bytes_sent_per_step=messages,
        seconds_per_step=seconds,
        tokens_per_second=tokens / seconds,
        hours=total_tokens / (tokens / seconds) / 3600,
        with_more_micro_batches=span != 1,
    )


@dataclass(frozen=True)
class Sizes:
    """Numbers of weights: what learns, what FSDP divides, its largest unit, what is frozen, and bytes of state."""

    learning: int
    divided: int
    largest_unit: int
    frozen: int
    buffers: float
    replay: float


@lru_cache(maxsize=16)
def sizes_of(config: BackboneConfig) -> Sizes:
    """Of a network that is never built. Kept, because one takes a second to outline."""
    net = outline(config.replace(replay=False))
    units, chunks = net.units(), config.replay_recent_chunks + config.replay_long_chunks
    divided: set[Tensor] = {parameter for unit in units for parameter in unit.parameters()}
    divided |= {net.get_input_embeddings().weight} if units else set()
    return Sizes(
        learning=sum(p.numel() for p in net.parameters() if p.requires_grad),
        divided=sum(parameter.numel() for parameter in divided),
        largest_unit=max((sum(p.numel() for p in unit.parameters()) for unit in units), default=0),
        frozen=sum(p.numel() for p in net.parameters() if not p.requires_grad),
        buffers=sum(buffer.nbytes for buffer in net.buffers()),
        replay=4 * chunks * config.replay_chunk_length if config.replay else 0,
    )


def needs_json(name: str, run: RunConfig, device: Device, rows: list[Need], *, is_guess: bool) -> dict[str, Any]:
    """All rows for programs. A guessed utilisation comes with the range of speeds that its `SPREAD` allows."""
    entries = [row.to_json() for row in rows]
    for row, entry in zip(rows, entries, strict=True) if is_guess else ():
        waiting = row.bytes_sent_per_step / device.bandwidth
        entry["tokens_per_second_range"] = [
            row.tokens_per_second * row.seconds_per_step / ((row.seconds_per_step - waiting) * factor + waiting)
            for factor in (SPREAD, 1 / SPREAD)
        ]
    return {
        "schema": 1,
        "recipe": name,
        "tokens_per_step": run.train.tokens_per_step,
        "training_flops_per_token": budget_of(run).training_flops_per_step / run.train.tokens_per_step,
        "utilisation": device.utilisation,
        "rows": entries,
    }


# --------------------------------------------------------------------------------------------------------- of a device


def _parts(
    run: RunConfig, sizes: Sizes, device: Device, devices: int, micro_batches: int, parallel: str, recompute: bool
) -> dict[str, float]:
    is_divided = parallel == "fsdp" and devices > 1 and sizes.divided > 0
    divided = sizes.divided if is_divided else 0
    held = sizes.learning - divided + divided / devices  # weights whose state this device keeps
    # FSDP puts two units together at a time, one running and one coming, and the embedding throughout.
    passing = 2 * sizes.largest_unit + run.model.vocab_size * run.model.d_model if is_divided else 0
    # Between micro-batches whole gradients are accumulated. Only the last one divides them.
    gradients = sizes.learning if micro_batches > 1 else held + passing
    activations, overlap = _activations(run, device, recompute)
    return {
        "parameters": 4.0 * (held + sizes.frozen + passing),
        # With one micro-batch gradients appear while activations go.
        "gradients": 4.0 * gradients if micro_batches > 1 else max(0.0, 4.0 * gradients - overlap),
        "optimizer": 4.0 * ADAM * held,
        "activations": activations,
        "memory": sizes.buffers,
    }


def _activations(run: RunConfig, device: Device, recompute: bool) -> tuple[float, float]:
    """Bytes at the end of a forward pass, and how many of them are gone when the first gradients of units appear."""
    config, train = run.model, run.train
    replayed = budget_of(run).replayed_tokens_per_step / train.micro_batches
    segments: list[tuple[float, int]] = [(train.batch_size * train.sequence_length, train.sequence_length)]
    segments += [(replayed, config.replay_chunk_length - 1)] if replayed else []
    width = 4 if device.is_cpu or train.precision == "float32" else 2
    units = once = 0.0
    for tokens, length in segments:
        kept = activations_of(config, length, on_cpu=device.is_cpu)
        of_units = kept.inputs * kept.num_units + kept.unit if recompute else kept.unit * kept.num_units
        units += tokens * of_units.bytes(width)
        once += tokens * kept.once.bytes(width)
    if width == 2:
        once += 2.0 * sizes_of(config).learning  # autocast keeps a half copy of every weight it used
    # The head's own gradient is formed with the loss, and a block of logits with it.
    head = 4.0 * config.vocab_size * config.d_model
    logits = 4.0 * CHUNK_ELEMENTS.get("cpu" if device.is_cpu else "cuda", LARGE_CHUNK)
    return units + once + head + logits, units + head


def _recomputed_share(run: RunConfig) -> float:
    """The second forward pass of columns or blocks, as a share of all arithmetic. Replay is nearly all theirs."""
    config, train = run.model, run.train
    replays = config.replay and run.control.mode != "off"
    costs = step_cost(config, train.batch_size, train.sequence_length, slots=config.read_slots, with_replay=replays)
    again = sum(costs[name].forward for name in ("columns", "blocks", "replay") if name in costs)
    return again / sum(cost.training for cost in costs.values())


def _messages(run: RunConfig, sizes: Sizes, devices: int, micro_batches: int, parallel: str) -> float:
    """Bytes a device sends in a step: gradients, with FSDP also weights, and what is remembered."""
    if devices == 1:
        return 0.0
    most = (devices - 1) / devices
    divided = sizes.divided if parallel == "fsdp" else 0
    gradients = 4.0 * most * (2 * (sizes.learning - divided) + divided)  # added up: twice. Each its own rows: once
    weights = 4.0 * most * 2 * divided * micro_batches  # put together in every forward and every backward pass
    return gradients + weights + remembered_bytes(run, micro_batches)


def remembered_bytes(run: RunConfig, micro_batches: int) -> float:
    """Bytes a device sends to the others so that memory and replay stores stay the same."""
    config, train = run.model, run.train
    rows = train.batch_size * micro_batches
    chunks = rows * (train.sequence_length // config.replay_chunk_length) if config.replay else 0
    sent = config.memory_bytes_sent(rows, train.sequence_length, micro_batches)
    return sent + 4.0 * chunks * config.replay_chunk_length
