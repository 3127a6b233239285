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
from trc2.replay.stores import stored_bytes
from trc2.runs.equal_cost import budget_of
from trc2.runs.schedule import TaskSchedule

ADAM = 2  # moments per weight
BYTES_OF_8_BITS = 1 + 4 / 256  # of a moment with one scale for 256 of them
BYTES_OF_4_BITS = 0.5 + 1 / 64  # of a weight with one scale of eight bits for 64 of them
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


def ways_to_train(run: RunConfig) -> dict[str, RunConfig]:
    """The run as it is, under no name. A Hugging Face model that learns as a whole is also planned with adapters."""
    cheaper, settings = run.model.cheaper_ways(), run.model_dump(mode="json")
    return {"all weights" if cheaper else "": run} | {
        name: RunConfig(**{**settings, "model": {**settings["model"], **changes}}) for name, changes in cheaper.items()
    }


def all_needs(run: RunConfig, device: Device, most: int = MOST_DEVICES) -> list[Need]:
    """A row for every power of two, each with the simplest way that fits."""
    counts = [2**power for power in range(most.bit_length()) if 2**power <= most]
    counts += [most] if most not in counts else []
    return [need(run, device, count) for count in counts]


def need(run: RunConfig, device: Device, devices: int) -> Need:
    """The first of DDP, DDP with recomputing, FSDP, FSDP with recomputing that fits. The last one if none does."""
    kinds = [kind for kind in KINDS if kind[0] == "ddp" or (devices > 1 and not run.model.is_quantized)]
    tried = [need_of(run, device, devices, *kind) for kind in kinds]
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
    """Numbers of weights that learn and of frozen ones, and how many of each FSDP divides. Bytes of state.

    `tables` are the weights of embedding and head, `learning_tables` those of them that learn, and `in_blocks` the
    frozen weights of the units, which may be stored in four bits.
    """

    learning: int
    frozen: int
    divided: int
    divided_frozen: int
    largest_unit: int
    tables: int
    learning_tables: int
    in_blocks: int
    buffers: float
    replay: float


def sizes_of(config: BackboneConfig) -> Sizes:
    """The sizes of a network, without building it. They are cached, because computing them takes a second."""
    return _sizes_of(type(config), config.model_dump_json())


@lru_cache(maxsize=16)
def _sizes_of(kind: type[BackboneConfig], settings: str) -> Sizes:
    config = kind.model_validate_json(settings)
    net = outline(config.replace(replay=False))
    units = net.units()
    in_units: set[Tensor] = {parameter for unit in units for parameter in unit.parameters()}
    divided = in_units | set(net.tables()) if units else set()
    learning, frozen = ([p for p in net.parameters() if p.requires_grad is wanted] for wanted in (True, False))
    return Sizes(
        learning=sum(p.numel() for p in learning),
        frozen=sum(p.numel() for p in frozen),
        divided=sum(p.numel() for p in learning if p in divided),
        divided_frozen=sum(p.numel() for p in frozen if p in divided),
        largest_unit=max((sum(p.numel() for p in unit.parameters()) for unit in units), default=0),
        tables=sum(table.numel() for table in net.tables()),
        learning_tables=sum(table.numel() for table in net.tables() if table.requires_grad),
        in_blocks=sum(p.numel() for p in frozen if p in in_units),
        buffers=sum(buffer.nbytes for buffer in net.buffers()),
        replay=stored_bytes(config) if config.replay else 0,
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
    is_divided = parallel == "fsdp" and devices > 1 and sizes.divided + sizes.divided_frozen > 0
    divided, divided_frozen = (sizes.divided, sizes.divided_frozen) if is_divided else (0, 0)
    held = sizes.learning - divided + divided / devices  # weights whose state this device keeps
    frozen = sizes.frozen - divided_frozen + divided_frozen / devices
    # FSDP puts two units together at a time, one running and one coming, and embedding and head throughout.
    passing = 2 * sizes.largest_unit + sizes.tables if is_divided else 0
    # Between micro-batches whole gradients are accumulated. Only the last one divides them.
    of_passing = passing * sizes.learning / (sizes.learning + sizes.frozen)
    width = bytes_of_weight(run.model)
    gradients = width * (sizes.learning if micro_batches > 1 else held + of_passing)
    activations, overlap = _activations(run, device, recompute)
    moment = BYTES_OF_8_BITS if run.train.optimizer == "adamw_8bit" else width
    return {
        "parameters": width * (held + frozen + passing) - _saved_by_quantizing(run.model, sizes),
        # With one micro-batch gradients appear while activations go.
        "gradients": gradients if micro_batches > 1 else max(0.0, gradients - overlap),
        "optimizer": ADAM * moment * held,
        "activations": activations,
        "memory": sizes.buffers,
    }


def bytes_of_weight(config: BackboneConfig) -> float:
    """Gradients and moments have the format of the weights, which a Hugging Face model may have in half precision."""
    return 4.0 if getattr(config, "dtype", "float32") == "float32" else 2.0


def _saved_by_quantizing(config: BackboneConfig, sizes: Sizes) -> float:
    """Bytes less than in the format of the weights."""
    return sizes.in_blocks * (bytes_of_weight(config) - BYTES_OF_4_BITS) if config.is_quantized else 0.0


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
    sizes, stored = sizes_of(config), bytes_of_weight(config)
    if width < stored:
        quantized = sizes.in_blocks if config.is_quantized else 0  # expanded for one product at a time
        once += 2.0 * (sizes.learning + sizes.frozen - quantized)  # autocast keeps a half copy of every weight it used
    # The head's own gradient is formed with the loss, and a block of logits with it.
    head = stored * config.vocab_size * config.d_model if sizes.learning_tables else 0.0
    logits = 4.0 * CHUNK_ELEMENTS.get("cpu" if device.is_cpu else "cuda", LARGE_CHUNK)
    return units + once + head + logits, units + head


def _recomputed_share(run: RunConfig) -> float:
    """The second forward pass of columns or blocks, as a share of all arithmetic. Replay is nearly all theirs."""
    config, train = run.model, run.train
    replays = config.replay and run.control.mode != "off"
    costs = step_cost(config, train.batch_size, train.sequence_length, slots=config.read_slots, with_replay=replays)
    again = sum(costs[name].forward for name in ("columns", "blocks", "model", "replay") if name in costs)
    return again / sum(cost.training for cost in costs.values())


def _messages(run: RunConfig, sizes: Sizes, devices: int, micro_batches: int, parallel: str) -> float:
    """Bytes a device sends in a step: gradients, with FSDP also weights, and what is remembered."""
    if devices == 1:
        return 0.0
    most = (devices - 1) / devices
    divided, frozen = (sizes.divided, sizes.divided_frozen) if parallel == "fsdp" else (0, 0)
    width = bytes_of_weight(run.model)
    gradients = width * most * (2 * (sizes.learning - divided) + divided)  # added up: twice. Each its own rows: once
    weights = width * most * 2 * (divided + frozen) * micro_batches  # put together in every forward and backward pass
    return gradients + weights + remembered_bytes(run, micro_batches)


def remembered_bytes(run: RunConfig, micro_batches: int) -> float:
    """Bytes a device sends to the others so that memory and replay stores stay the same."""
    config, train = run.model, run.train
    rows = train.batch_size * micro_batches
    chunks = rows * (train.sequence_length // config.replay_chunk_length) if config.replay else 0
    sent = config.memory_bytes_sent(rows, train.sequence_length, micro_batches)
    return sent + 4.0 * chunks * config.replay_chunk_length
