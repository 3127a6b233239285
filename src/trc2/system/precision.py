"""Device and number format, chosen by what the machine does well unless the settings name them, and its peaks."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import torch

from trc2.errors import UserError, brief
from trc2.system.machine import peak_memory_bytes
from trc2.system.torchrun import place_of_process

PRODUCT_SIZE = 1024  # rows and columns of the product that measures the machine
NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device of this process. Each of several processes on one machine has its own GPU."""
    device, place = _named_device(name), place_of_process()
    if place.world == 1 or device.type != "cuda":
        return device
    if ":" in name:
        raise UserError(f"output.device='{name}' is one device for {place.world} processes: use auto or cuda.")
    if place.local_world > torch.cuda.device_count():
        raise UserError(
            f"This machine has {torch.cuda.device_count()} GPUs for {place.local_world} processes: start at most as "
            "many, or use output.device=cpu."
        )
    return torch.device("cuda", place.local_rank)


def _named_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"output.device='{name}' is not a device: use auto, cpu, cuda or cuda:0.") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"output.device='{name}' was never tested: use auto, cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"output.device='{name}' is not available on this machine: use auto or cpu.")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 where the GPU has it natively, float16 on older GPUs, float32 on CPUs.

    CPUs without bfloat16 units emulate it hundreds of times slower, and few say so.
    """
    if name != "auto":
        return NAMES[name]
    if device.type != "cuda":
        return torch.float32
    major, _ = torch.cuda.get_device_capability(device)
    return torch.bfloat16 if major >= 8 else torch.float16


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def loss_scaler(device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler:
    """Gradient scaling, which only float16 needs."""
    return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)


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
        return torch.cuda.max_memory_allocated(device) / 1e9
    return peak_memory_bytes() / 1e9


def import_bitsandbytes(setting: str) -> Any:
    """The package bitsandbytes, for 8-bit optimizers and 4-bit weights. Raises a UserError that names the setting."""
    try:
        return import_module("bitsandbytes")
    except ModuleNotFoundError:
        raise UserError(
            f"{setting} needs bitsandbytes: install it with `pip install '.[bitsandbytes]'` in the checkout, on a "
            "machine with a GPU, or leave the setting out."
        ) from None
    except (ImportError, OSError, RuntimeError) as error:  # it loads a library for the GPU that it finds
        raise UserError(
            f"{setting} needs bitsandbytes, which cannot be used here ({brief(error)}): repair its installation, or "
            "leave the setting out."
        ) from None
