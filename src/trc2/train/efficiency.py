"""What a run cost: speed, memory, and how much of the machine's arithmetic it used."""

from __future__ import annotations

import resource
import sys
import time

import torch

from trc2.backbones.registry import step_cost
from trc2.config import RunConfig
from trc2.nn.cost import Cost

GB = 1e9


def peak_matmul_flops(device: torch.device, size: int = 1024, repeats: int = 5) -> float:
    """FLOP/s of a large float32 product on this machine right now: the yardstick of utilisation."""
    a, b = torch.ones(size, size, device=device), torch.ones(size, size, device=device)
    best = float("inf")
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best


def peak_memory_bytes(device: torch.device) -> float:
    """The most memory ever in use: of the GPU, else of this process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def training_flops_per_token(config: RunConfig, slots: int, with_replay: bool) -> float:
    """Arithmetic of forward and backward, replay included, per token of the batch."""
    train = config.train
    costs = step_cost(config.model, train.batch_size, train.sequence_length, slots=slots, with_replay=with_replay)
    return sum(costs.values(), Cost()).training / (train.batch_size * train.sequence_length)


def efficiency(
    device: torch.device, tokens: int, train_seconds: float, total_seconds: float, flops_per_token: float, peak: float
) -> dict[str, float]:
    """The run's totals; GB·h is peak memory times wall time, per device."""
    memory = peak_memory_bytes(device)
    speed = tokens / max(train_seconds, 1e-9)
    return {
        "efficiency/tokens_per_second": speed,
        "efficiency/peak_memory_gb": memory / GB,
        "efficiency/gb_hours": memory / GB * total_seconds / 3600,
        "efficiency/training_flops_per_token": flops_per_token,
        "efficiency/matmul_flops": peak,
        "efficiency/utilisation": speed * flops_per_token / peak,
        "efficiency/evaluation_share": max(0.0, 1.0 - train_seconds / max(total_seconds, 1e-9)),
    }
