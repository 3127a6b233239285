"""The cost of a run: speed, memory, and utilisation of the machine's arithmetic."""

from __future__ import annotations

import time

import torch

from trc2.backbones.registry import step_cost
from trc2.config import RunConfig
from trc2.nn.cost import Cost
from trc2.runs.equal_cost import strategy_flops
from trc2.system.machine import peak_memory_bytes

GB = 1e9
PEAK_MEMORY = "efficiency/peak_memory_gb"
PRODUCT_SIZE = 1024  # rows and columns of the product that measures the machine


def peak_matmul_flops(device: torch.device) -> float:
    """FLOP/s of a large float32 product on this machine right now: the yardstick of utilisation."""
    size = PRODUCT_SIZE
    a, b = torch.ones(size, size, device=device), torch.ones(size, size, device=device)
    best = float("inf")
    for _ in range(6):
        begun = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best


def peak_memory_gb(device: torch.device) -> float:
    """The peak memory of this process: of the GPU, or of the machine without one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GB
    return peak_memory_bytes() / GB


def training_flops_per_token(config: RunConfig, slots: int, with_replay: bool) -> float:
    """Arithmetic of forward and backward, replay and a strategy's passes included, per token of the batch."""
    train = config.train
    costs = step_cost(config.model, train.batch_size, train.sequence_length, slots=slots, with_replay=with_replay)
    flops = sum(costs.values(), Cost()).training + strategy_flops(config, with_replay=with_replay)
    return flops / (train.batch_size * train.sequence_length)


def efficiency(
    tokens: int,
    train_seconds: float,
    total_seconds: float,
    *,
    last_speed: float,
    memory_gb: float,
    flops_per_token: float,
    peak_flops: float,
) -> dict[str, float]:
    """The run's totals over all of its processes; GB·h is peak memory times wall time, per device.

    `tokens_per_second` is the mean over all steps, `…_last` is of the last step, as printed in the paper.
    """
    speed = tokens / max(train_seconds, 1e-9)
    return {
        "efficiency/tokens_per_second": speed,
        "efficiency/tokens_per_second_last": last_speed,
        PEAK_MEMORY: memory_gb,
        "efficiency/gb_hours": memory_gb * total_seconds / 3600,
        "efficiency/training_flops_per_token": flops_per_token,
        "efficiency/matmul_flops": peak_flops,
        "efficiency/utilisation": speed * flops_per_token / peak_flops,
        "efficiency/evaluation_share": max(0.0, 1.0 - train_seconds / max(total_seconds, 1e-9)),
    }
