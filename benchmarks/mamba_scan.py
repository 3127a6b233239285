"""The selective scan beside the loop it replaces, and the whole Mamba mixer beside the one in `transformers`.

    python benchmarks/mamba_scan.py --out benchmarks/mamba_scan.json

Forward and backward at the lab recipe's shape, interleaved in one process: the time that passes with two threads, and
the processor time of one, which other programs on the machine disturb least. Both loops run the recurrence step by step
under autograd: one with the states of a channel side by side, as the equation is written, one with the channels of a
state side by side, as our scan has them. Peak memory is that of a process of its own (Linux), less what it had before
the scan. `transformers` is compared where it is installed, with the same weights and without kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from trc2 import load_recipe
from trc2.backbones.mamba import MambaConfig, MambaMixer, build
from trc2.nn.segments import pack
from trc2.ops.scan import selective_scan

THREADS = 2
STATES = 16
MEMORY_STATES, MEMORY_CHUNK = 128, 32  # the paper's size, with one row


def loop(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    state, y = x.new_zeros(x.shape[0], *A.shape), []
    for driven, step, b, c in zip(*(t.unbind(1) for t in (delta * x, delta, B, C)), strict=True):
        state = torch.exp(step.unsqueeze(2) * A) * state + driven.unsqueeze(2) * b.unsqueeze(1)
        y.append((state @ c.unsqueeze(2)).squeeze(2))
    return torch.stack(y, dim=1)


def loop_channels_last(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    A = A.t().contiguous()
    state, y = x.new_zeros(x.shape[0], *A.shape), []
    for driven, step, b, c in zip(*(t.unbind(1) for t in (delta * x, delta, B, C)), strict=True):
        state = torch.exp(step.unsqueeze(1) * A) * state + driven.unsqueeze(1) * b.unsqueeze(2)
        y.append((c.unsqueeze(1) @ state).squeeze(1))
    return torch.stack(y, dim=1)


def scan(chunk: int) -> Callable[..., Tensor]:
    return lambda *inputs: selective_scan(*inputs, chunk=chunk).y


def draw(rows: int, length: int, channels: int, states: int) -> list[Tensor]:
    """Inputs as a fresh mixer makes them: steps of 0.001 to 0.1, decays of −1 … −N."""
    rng = torch.Generator().manual_seed(0)
    x, B, C = (torch.randn(rows, length, width, generator=rng) for width in (channels, states, states))
    delta = torch.exp(torch.empty(rows, length, channels).uniform_(-6.9, -2.3, generator=rng))
    A = -torch.arange(1.0, states + 1).repeat(channels, 1)
    return [tensor.requires_grad_() for tensor in (x, delta, A, B, C)]


def train(function: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    torch.autograd.grad(function(*inputs).sum(), inputs)


def interleaved(
    actions: dict[str, Callable[[], None]], repeats: int, threads: int = THREADS
) -> dict[str, dict[str, float]]:
    """Seconds of each, taken in turn, after one round that is not counted."""
    torch.set_num_threads(threads)
    clock = time.perf_counter if threads > 1 else time.process_time
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            begun = clock()
            action()
            times[name].append(clock() - begun)
    return {
        name: {"median": round(statistics.median(taken[1:]), 4), "min": round(min(taken[1:]), 4)}
        for name, taken in times.items()
    }


def ratios(seconds: dict[str, dict[str, float]], ours: str) -> dict[str, float]:
    """How many times longer the others take, by medians."""
    return {
        name: round(taken["median"] / seconds[ours]["median"], 2) for name, taken in seconds.items() if name != ours
    }


def grown(name: str, length: int, channels: int, answers: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    torch.set_num_threads(THREADS)
    function = {"scan": scan(MEMORY_CHUNK), "loop": loop_channels_last}[name]
    train(function, draw(1, 2, 8, 2))  # what any first call loads
    inputs = draw(1, length, channels, MEMORY_STATES)
    before = peak_kilobytes()
    train(function, inputs)
    answers.put((peak_kilobytes() - before) * 1024)


def peak_kilobytes() -> int:
    """Of this program alone: getrusage would start from the peak of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def peak(name: str, length: int, channels: int) -> float:
    """Megabytes a forward and backward pass adds to a fresh process."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=grown, args=(name, length, channels, answers))
    process.start()
    bytes_grown = answers.get()
    process.join()
    return round(bytes_grown / 1e6, 1)


def peaks(length: int, channels: int) -> dict[str, float]:
    """Of both, beside the size of the states of all tokens."""
    all_states = round(length * channels * MEMORY_STATES * 4 / 1e6, 1)
    return {"tokens": length, "all_states": all_states, **{n: peak(n, length, channels) for n in ("scan", "loop")}}


def mixer_step(call: Callable[[Tensor], Tensor], u: Tensor) -> Callable[[], None]:
    def step() -> None:
        call(u.clone().requires_grad_()).sum().backward()

    return step


def rival_mixer(ours: MambaMixer, d_model: int) -> nn.Module:
    """The mixer of `transformers` with our weights."""
    from transformers import MambaConfig as TheirConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer as TheirMixer

    theirs = TheirMixer(TheirConfig(hidden_size=d_model, state_size=STATES, num_hidden_layers=1), 0)
    pairs = {
        "in_proj.weight": ours.input.weight,
        "conv1d.weight": ours.conv_weight.unsqueeze(1),
        "conv1d.bias": ours.conv_bias,
        "x_proj.weight": ours.selection.weight,
        "dt_proj.weight": ours.step.weight,
        "dt_proj.bias": ours.step_bias,
        "A_log": ours.decay_log,
        "D": ours.skip,
        "out_proj.weight": ours.output.weight,
    }
    theirs.load_state_dict({name: tensor.detach() for name, tensor in pairs.items()})
    return theirs


def compare_mixers(rows: int, length: int, d_model: int, chunk: int, repeats: int) -> dict[str, object]:
    config = MambaConfig(d_model=d_model, num_layers=1, state_dim=STATES, dt_rank=None, scan_chunk=chunk, vocab_size=8)
    ours = build(config, torch.Generator().manual_seed(0)).trunk.blocks[0].mixer
    theirs = rival_mixer(ours, d_model)
    u = torch.randn(rows, length, d_model, generator=torch.Generator().manual_seed(1))
    segments = pack([torch.zeros(rows, length, dtype=torch.int64)]).segments
    run_ours: Callable[[Tensor], Tensor] = lambda v: ours(v.flatten(0, 1), segments).view_as(v)  # noqa: E731
    with torch.no_grad():
        difference = float((run_ours(u) - theirs(u)).abs().max())
    steps = {"trc2": mixer_step(run_ours, u), "transformers": mixer_step(theirs, u)}
    seconds = interleaved(steps, repeats, threads=1)
    ratio = ratios(seconds, "trc2")
    return {"processor_seconds_of_one_thread": seconds, "ratio": ratio, "largest_difference": difference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="lab_trc2", help="whose batch, length and width are used")
    parser.add_argument("--chunk", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048], help="for the memory")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/mamba_scan.json"))
    arguments = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    torch.set_num_threads(THREADS)
    run = load_recipe(arguments.recipe)
    rows, length, d_model = run.train.batch_size, run.train.sequence_length, run.model.d_model
    channels = 2 * d_model

    inputs = draw(rows, length, channels, STATES)
    contenders = {"scan": scan(arguments.chunk), "loop": loop, "loop, channels last": loop_channels_last}
    actions = {name: (lambda f=function: train(f, inputs)) for name, function in contenders.items()}
    seconds = interleaved(actions, arguments.repeats)
    processor_seconds = interleaved(actions, arguments.repeats, threads=1)
    result: dict[str, object] = {
        "schema": 1,
        "command": f"python benchmarks/mamba_scan.py --recipe {arguments.recipe} --chunk {arguments.chunk}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "threads": THREADS,
        "load_average_before": load,
        "shape": {"rows": rows, "tokens": length, "channels": channels, "states": STATES, "chunk": arguments.chunk},
        "seconds": seconds,
        "ratio": ratios(seconds, "scan"),
        "processor_seconds_of_one_thread": processor_seconds,
        "processor_ratio": ratios(processor_seconds, "scan"),
        "memory": {
            "shape": {"rows": 1, "channels": channels, "states": MEMORY_STATES, "chunk": MEMORY_CHUNK},
            "peak_mb": [peaks(tokens, channels) for tokens in arguments.lengths],
        },
    }
    if importlib.util.find_spec("transformers") is not None:
        import transformers

        result["mixer"] = {
            "transformers": transformers.__version__,
            **compare_mixers(rows, length, d_model, arguments.chunk, repeats=2),
        }
    print(json.dumps(result, indent=2))
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
