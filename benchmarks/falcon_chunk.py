"""How much the chunk form of FALCON's fast weights gains over running them token by token, forward and backward.

    python benchmarks/falcon_chunk.py --out benchmarks/falcon_chunk.json

All forms run in one process, in turn, on the same tokens: sizes of the lab recipes, float32. The token-by-token form
is `trc2.ops.fast_weights.recurrence`, batched over rows and heads, with torch's autograd. Wall-clock time is taken with
two threads, and CPU time with one, which other processes on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trc2.backbones.falcon import FalconConfig
from trc2.ops.fast_weights import Reading, Steps, fast_weights, recurrence, ridge_steps

# variant, d_model, heads, rows, tokens
CASES = [
    ("falcon2", 128, 8, 16, 256),
    ("falcon2", 128, 4, 16, 256),
    ("falcon2", 192, 8, 8, 256),
    ("falcon2", 192, 4, 8, 128),
    ("falcon1", 128, 8, 16, 256),
]
CHUNKS = (8, 16, 32)
CLOCKS = {"wall, 2 threads": (2, time.perf_counter), "cpu, 1 thread": (1, time.process_time)}


def make_tokens(variant: str, d_model: int, heads: int, rows: int, length: int) -> list[Tensor]:
    """q, x, v, η, γ and the state before them. Queries and keys normalised per head, as in the mixer."""
    width = d_model // heads
    q, x, v = (torch.randn(rows, length, heads, width) for _ in range(3))
    q, x = (torch.nn.functional.rms_norm(tensor, (width,)) for tensor in (q, x))
    gain = 2 * torch.randn(rows, length, heads, width if variant == "falcon2" else 1).sigmoid()
    steps = ridge_steps(gain, x, torch.randn(rows, length, heads, 1).sub(4).sigmoid())
    tensors = [q, x, v, steps.write, steps.keep, torch.zeros(rows, heads, width, width)]
    return [tensor.requires_grad_() for tensor in tensors]


def forms(tensors: list[Tensor]) -> dict[str, Callable[[], Reading]]:
    q, x, v, write, keep, state = tensors
    steps = Steps(write, keep)
    chunked = {f"chunk {c}": lambda c=c: fast_weights(q, x, v, steps, state, c) for c in CHUNKS}
    return {"sequential": lambda: recurrence(q, x, v, steps, state), **chunked}


def measure(tensors: list[Tensor], repeats: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    run = forms(tensors)
    seconds: dict[str, list[float]] = {name: [] for name in run}
    for number in range(repeats + 1):
        for name, form in run.items():
            begun = clock()
            reading = form()
            torch.autograd.grad(reading.output.square().sum() + reading.state.sum(), tensors)
            if number:  # the first round warms up
                seconds[name].append(clock() - begun)
    best, middle = min(seconds["sequential"]), statistics.median(seconds["sequential"])
    return {
        name: {
            "median_ms": round(1e3 * statistics.median(values), 2),
            "min_ms": round(1e3 * min(values), 2),
            "speedup_of_medians": round(middle / statistics.median(values), 2),
            "speedup_of_minima": round(best / min(values), 2),
        }
        for name, values in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/falcon_chunk.json"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    load = Path("/proc/loadavg")
    result: dict[str, Any] = {
        "schema": 1,
        "command": f"python benchmarks/falcon_chunk.py --repeats {arguments.repeats}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "repeats": arguments.repeats,
        "load_before": load.read_text().split()[0] if load.exists() else None,
        "default_chunk": FalconConfig().chunk,
        "cases": [],
    }
    for variant, d_model, heads, rows, length in CASES:
        case: dict[str, Any] = {"variant": variant, "d_model": d_model, "heads": heads, "rows": rows, "tokens": length}
        tensors = make_tokens(variant, d_model, heads, rows, length)
        for name, (threads, clock) in CLOCKS.items():
            torch.set_num_threads(threads)
            case[name] = measure(tensors, arguments.repeats, clock)
        result["cases"].append(case)
        print(json.dumps(case))
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
