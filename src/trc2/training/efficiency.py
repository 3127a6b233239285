"""What this machine can do and what a process took of it: FLOP/s of a product, and peak memory."""

from __future__ import annotations

import time

import torch

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
