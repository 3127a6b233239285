"""The speed table: ratios of alternatives that take turns in one process, two threads, float32.

    python benchmarks/speed.py [--only NAME ...] [--repeats N] [--keep-memory] [--threads 1]

Writes benchmarks/speed.json, section by section. Sections not asked for keep what is there. With --keep-memory all
alternatives run as the trainer does, with freed memory kept by the process (trc2.system.machine).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trc2.backbones.registry import compile_parts
from trc2.config import RunConfig, TrainConfig, TRC2Config, load_recipe
from trc2.costs.benchmarks import (
    decoding,
    learning_pass,
    prepared_model,
    rival,
    rival_decoding,
    rival_pass,
    tokens_of,
    training_step,
)
from trc2.costs.breakdown import subsystem_runs
from trc2.costs.comparison import pass_flops
from trc2.costs.timing import Timing, ratio, take_turns
from trc2.model.hippocampus import Hippocampus
from trc2.nn.experts import RoutedExperts
from trc2.system.machine import keep_freed_memory

OUT = Path(__file__).with_name("speed.json")
REPLAY = {"replay_chunk_length": 65, "replay_batch_size": 2}  # 2 × 64 tokens are run beside 2048: 6.25 %

SHAPES: dict[str, tuple[dict[str, Any], int, int]] = {
    "d128-L4": ({"d_model": 128, "num_experts": 4, "vocab_size": 4096, "memory_slots": 1024, "memory_key_dim": 32,
                 "max_positions": 256}, 16, 128),
    "d256-L4": ({"d_model": 256, "num_experts": 8, "vocab_size": 8192, "memory_slots": 4096, "max_positions": 256},
                8, 256),
    "d768-L4": ({"d_model": 768, "num_heads": 12, "num_kv_heads": 6, "memory_slots": 8192}, 2, 1024),
}  # fmt: skip


def shape(name: str) -> tuple[TRC2Config, int, int]:
    settings, rows, length = SHAPES[name]
    return TRC2Config(**settings, **REPLAY), rows, length


def ratios(slow: Timing, fast: Timing) -> dict[str, float]:
    """The ratio within rounds, of medians and of minima. Where they differ, the machine was noisy."""
    return {
        "ratio": ratio(slow, fast),
        "of_medians": slow.median / fast.median,
        "of_minima": slow.minimum / fast.minimum,
    }


def passes(name: str, repeats: int, *, with_rival: bool) -> dict[str, Any]:
    """Forward, loss and backward: full, ablated and, if asked, Mixtral."""
    config, rows, length = shape(name)
    yardstick = torch.randn(2048, 2048)
    runs: dict[str, Callable[[], object]] = {
        "full": learning_pass(prepared_model(config), rows, length),
        "ablated": learning_pass(prepared_model(config.backbone_only()), rows, length),
        "large product": lambda: yardstick @ yardstick,
    }
    if with_rival:
        runs["mixtral"] = rival_pass(rival("mixtral", config), config, rows, length)
        llama = rival("llama", config)
        runs["llama"] = rival_pass(llama, config, rows, length)
        runs["llama, compiled"] = rival_pass(torch.compile(copy.deepcopy(llama)), config, rows, length)
        runs["llama, compiled"]()  # compiles
    times = take_turns(runs, repeats)
    flops, plain = pass_flops(config, rows, length), pass_flops(config.backbone_only(), rows, length)
    product = Timing(tuple(seconds / (2 * 2048**3) for seconds in times["large product"].seconds))  # of one FLOP
    full_over_ablated = ratios(times["ablated"], times["full"])
    result: dict[str, Any] = {
        "seconds": {key: timing.to_json() for key, timing in times.items()},
        "full_over_ablated": full_over_ablated,
        "flops_ablated_over_full": plain / flops,
        "full_over_ablated_per_flop": {key: value * flops / plain for key, value in full_over_ablated.items()},
        "large_product_gflops": 1e-9 / product.minimum,
        "utilisation_full": {key: value * flops for key, value in ratios(product, times["full"]).items()},
        "utilisation_ablated": {key: value * plain for key, value in ratios(product, times["ablated"]).items()},
    }
    if with_rival:
        result["ablated_over_mixtral"] = ratios(times["mixtral"], times["ablated"])
        result["full_over_mixtral"] = ratios(times["mixtral"], times["full"])
        for key in ("llama", "llama, compiled"):
            result[f"ablated_over_{key}"] = ratios(times[key], times["ablated"])
    return result


def mamba(repeats: int) -> dict[str, Any]:
    """Our lab recipe against transformers' Mamba of the same width, depth, state and rank. Theirs has no SwiGLU."""
    run = load_recipe("lab_mamba")
    config, rows, length = run.model, run.train.batch_size, run.train.sequence_length
    times = take_turns(
        {
            "ours": learning_pass(prepared_model(config), rows, length),
            "theirs": rival_pass(rival("mamba", config), config, rows, length),
        },
        repeats,
    )
    seconds = {key: timing.to_json() for key, timing in times.items()}
    return {"seconds": seconds, "ours_over_theirs": ratios(times["theirs"], times["ours"])}


def retrieval(repeats: int) -> dict[str, Any]:
    """Exact top-4 of 4096 queries of width 128, beside faiss' flat inner product."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    results = {}
    queries = torch.randn(4096, 128)
    for slots in (8192, 32_768, 131_072):
        memory = Hippocampus(TRC2Config(d_model=128, memory_slots=slots, memory_read_window=slots, memory_key_dim=128))
        keys = torch.randn(slots, 128)
        memory.keys.copy_(keys)
        memory.cursor.set(slots, 0)
        index = faiss.IndexFlatIP(128)
        index.add(keys.numpy())
        window = memory.read_ranges()
        ours = memory.search(queries, window)
        theirs = index.search(queries.numpy(), 4)[1]
        times = take_turns(
            {
                "ours": lambda memory=memory, window=window: memory.search(queries, window),
                "faiss": lambda index=index: index.search(queries.numpy(), 4),
            },
            repeats,
        )
        results[str(slots)] = {
            "seconds": {key: timing.to_json() for key, timing in times.items()},
            "ours_over_faiss": ratios(times["faiss"], times["ours"]),
            "same_slots": float((ours == torch.from_numpy(theirs)).float().mean()),
        }
    return results


def decode(name: str, repeats: int) -> dict[str, Any]:
    """Greedy decoding with state, 16 tokens of prompt and 64 new ones, beside Mixtral by transformers and by llama.cpp.

    `compiled` is `trc2 generate --compile now`. `first_run_seconds` contain compiling, unless it was cached.
    """
    from llama_cpp_rival import Decoder, quantize, write_gguf  # needs llama-cpp-python and gguf

    results: dict[str, Any] = {}
    config, _, _ = shape(name)
    full, plain, other = prepared_model(config), prepared_model(config.backbone_only()), rival("mixtral", config)
    folder = Path(tempfile.mkdtemp())
    write_gguf(other, folder / "F32")
    quantize(folder / "F32", folder / "Q8_0")
    for rows in (1, 8, 32):
        prompt, _ = tokens_of(config, rows, 16)
        subjects = {
            "full": decoding(full, rows, 16, 64),
            "full, compiled": decoding(full, rows, 16, 64, "now"),
            "ablated": decoding(plain, rows, 16, 64),
            "ablated, compiled": decoding(plain, rows, 16, 64, "now"),
            "mixtral": rival_decoding(other, config, rows, 16, 64),
            "mixtral, static cache, compiled": rival_decoding(other, config, rows, 16, 64, compiled=True),
        }
        for kind in ("F32", "Q8_0"):
            decoder = Decoder(folder / kind, rows, torch.get_num_threads())
            subjects[f"llama.cpp {kind}"] = decoder.decoding(prompt, 64)
        first = {key: seconds_of(run) for key, run in subjects.items() if "compiled" in key}
        times = take_turns(subjects, repeats)
        rivals = [key for key in subjects if key.startswith(("mixtral", "llama.cpp"))]
        results[f"{rows} rows"] = {
            "seconds": {key: timing.to_json() for key, timing in times.items()},
            "first_run_seconds": first,
            **{
                f"{key}_over_{other_key}": ratios(times[other_key], times[key])
                for key in subjects
                for other_key in rivals
                if key not in rivals
            },
            "full_compiled_over_plain": ratios(times["full"], times["full, compiled"]),
        }
    shutil.rmtree(folder)
    one, eight = (Timing(tuple(results[f"{rows} rows"]["seconds"]["full, compiled"]["seconds"])) for rows in (1, 8))
    return {**results, "throughput_8_rows_over_1": 8 * one.median / eight.median}


def seconds_of(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def machine(repeats: int) -> dict[str, Any]:
    """What bounds all others: the FLOP/s of a large product, and how fast memory is read."""
    product, block = torch.randn(2048, 2048), torch.ones(2**27)
    times = take_turns({"product": lambda: product @ product, "read": block.sum}, 3 * repeats)
    return {
        "seconds": {key: timing.to_json() for key, timing in times.items()},
        "large_product_gflops": 2e-9 * 2048**3 / times["product"].minimum,
        "read_gb_per_second": 4e-9 * block.numel() / times["read"].minimum,
    }


def experts(repeats: int) -> dict[str, Any]:
    """Forward and backward of one layer of routed experts, top-2 of 4 and of 32, on 8192 tokens."""
    u = torch.randn(8192, 256, requires_grad=True)
    layers = {count: RoutedExperts(256, 768, count, 2, has_shared=True) for count in (4, 8, 16, 32)}

    def run(layer: RoutedExperts) -> None:
        mixed, _ = layer(u)
        mixed.backward(torch.ones_like(mixed))
        layer.zero_grad(set_to_none=True)

    times = take_turns({str(n): lambda layer=layer: run(layer) for n, layer in layers.items()}, repeats)
    seconds = {key: timing.to_json() for key, timing in times.items()}
    growth = {key: value - 1 for key, value in ratios(times["32"], times["4"]).items()}
    return {"seconds": seconds, "growth_4_to_32": growth}


MEMORY = """
import sys
from pathlib import Path
from trc2.costs.benchmarks import prepared_model, tokens_of
from trc2.config import TRC2Config
net = prepared_model(TRC2Config(d_model=256, num_experts=8, vocab_size=50257, memory_slots=4096, max_positions=256,
                                replay_chunk_length=65, replay_batch_size=2))
x, y = tokens_of(net.config, 8, 256)
def peak():
    return int(next(l.split()[1] for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM")))
Path("/proc/self/clear_refs").write_text("5")
before = peak()
_, aux = net(x, y, return_logits=sys.argv[1] == "full")
aux["loss"].backward()
print((peak() - before) / 1024)
"""


def memory(_repeats: int) -> dict[str, Any]:
    """What a pass at d256-L4 with 50,257 tokens adds to its process: chunked loss against logits kept whole."""
    added = {}
    for kind in ("chunked", "full"):
        done = subprocess.run([sys.executable, "-c", MEMORY, kind], capture_output=True, text=True, check=True)
        added[kind] = float(done.stdout)
    return {"added_mb": added, "chunked_over_full": added["chunked"] / added["full"]}


def step_ends(repeats: int) -> dict[str, Any]:
    """Share of flush and slow heads in a whole optimizer step at d256-L4."""
    config, rows, length = shape("d256-L4")
    run = RunConfig(model=config, train=TrainConfig(batch_size=rows, sequence_length=length))
    net = prepared_model(config)
    parts = subsystem_runs(net, rows, length)
    times = take_turns({"step": training_step(net, run), **parts}, repeats)
    seconds = {name: timing.to_json() for name, timing in times.items()}
    return {
        "seconds": seconds,
        "share": {name: ratios(timing, times["step"])["ratio"] for name, timing in times.items()},
    }


def compiled(repeats: int) -> dict[str, Any]:
    """The learning pass at d256-L4 with attention, router and norms compiled, and what compiling costs at the start."""
    config, rows, length = shape("d256-L4")
    plain, other = prepared_model(config), prepared_model(config)
    compile_parts(other)
    runs = {"plain": learning_pass(plain, rows, length), "compiled": learning_pass(other, rows, length)}
    begun = time.perf_counter()
    runs["compiled"]()
    start = time.perf_counter() - begun
    times = take_turns(runs, repeats)
    seconds = {key: timing.to_json() for key, timing in times.items()}
    return {"seconds": seconds, "first_pass_seconds": start, "compiled_over_plain": ratios(*times.values())}


ALLOCATOR = """
import json, sys
import torch
torch.set_num_threads(2)
if sys.argv[1] == "keep":
    from trc2.system.machine import keep_freed_memory
    assert keep_freed_memory()
from trc2.costs.benchmarks import prepared_model, training_step
from trc2.costs.timing import time_once
from trc2.config import RunConfig, TrainConfig, TRC2Config
settings, rows, length = json.loads(sys.argv[2])
config = TRC2Config(**settings)
train = TrainConfig(batch_size=rows, sequence_length=length)
run = training_step(prepared_model(config), RunConfig(model=config, train=train))
run()
print("ready", flush=True)
for _ in sys.stdin:
    print(time_once(run), flush=True)
"""


def allocator(repeats: int) -> dict[str, Any]:
    """A whole optimizer step with freed memory kept, as the trainer does it, and without: two processes take turns."""
    result = {}
    for name in ("d128-L4", "d256-L4"):
        config, rows, length = shape(name)
        workers = {}
        for kind in ("keep", "leave"):
            command = [sys.executable, "-c", ALLOCATOR, kind, json.dumps([config.model_dump(), rows, length])]
            workers[kind] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert workers[kind].stdout.readline() == "ready\n"
        spent: dict[str, list[float]] = {kind: [] for kind in workers}
        for _ in range(repeats):
            for kind, worker in workers.items():
                worker.stdin.write("again\n")
                worker.stdin.flush()
                spent[kind].append(float(worker.stdout.readline()))
        for worker in workers.values():
            worker.communicate()
        times = {kind: Timing(tuple(seconds)) for kind, seconds in spent.items()}
        seconds = {key: timing.to_json() for key, timing in times.items()}
        result[name] = {"seconds": seconds, "kept_over_left": ratios(times["leave"], times["keep"])}
    return result


PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::baddbmm_"}


def profile(_repeats: int) -> dict[str, Any]:
    """Where a pass spends its time and how many fresh pages it takes, and how many calls a decoded token is."""
    result: dict[str, Any] = {}
    for name in ("d128-L4", "d256-L4"):
        config, rows, length = shape(name)
        subjects = {
            "full": learning_pass(prepared_model(config), rows, length),
            "ablated": learning_pass(prepared_model(config.backbone_only()), rows, length),
            "mixtral": rival_pass(rival("mixtral", config), config, rows, length),
        }
        result[name] = {}
        for kind, run in subjects.items():
            run()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            run()
            pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
            spent = {event.key: event.self_cpu_time_total for event in profiled(run)}
            products = sum(time for key, time in spent.items() if key in PRODUCTS) / sum(spent.values())
            result[name][kind] = {"fresh_pages": float(pages), "share_of_products": products}
        for rows in (1, 8):
            events = profiled(decoding(prepared_model(config), rows, 16, 64))
            calls = sum(event.count for event in events if event.key.startswith("aten::")) / 64
            result[name][f"calls_per_decoded_token_{rows}"] = calls
    return result


def profiled(run: Callable[[], object]) -> Any:
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        run()
    return found.key_averages()


SECTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "d128-L4": lambda n: passes("d128-L4", 3 * n, with_rival=True),
    "d256-L4": lambda n: passes("d256-L4", 2 * n, with_rival=True),
    "d768-L4": lambda n: passes("d768-L4", max(3, n // 2), with_rival=False),
    "mamba": mamba,
    "retrieval": retrieval,
    "decode-d128-L4": lambda n: decode("d128-L4", n),
    "decode-d256-L4": lambda n: decode("d256-L4", n),
    "machine": machine,
    "experts": experts,
    "memory": memory,
    "step": step_ends,
    "profile": profile,
    "compile": compiled,
    "allocator": lambda n: allocator(2 * n),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--keep-memory", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    suffix = ", freed memory kept" if options.keep_memory else ""
    suffix += f", {options.threads} thread" if options.threads != 2 else ""
    if options.keep_memory and not keep_freed_memory():
        parser.error("--keep-memory needs glibc, and no MALLOC_ settings in the environment.")
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in options.only:
        result = SECTIONS[name](options.repeats)
        known[name + suffix] = result
        known["about"] = {
            "schema": 1,
            "command": "python benchmarks/speed.py",
            "threads": 2,  # unless the name of a section says otherwise
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }
        OUT.write_text(json.dumps(known, indent=1) + "\n")
        for key, value in flat(result):
            print(f"{name}{suffix}: {key} = {value:.3f}", flush=True)


def flat(tree: dict[str, Any], path: str = "") -> list[tuple[str, float]]:
    """The ratios and shares of a section, without its raw seconds."""
    found = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += flat(value, f"{path}{key}/") if key != "seconds" else []
        elif isinstance(value, float) and key not in ("minimum", "median") and math.isfinite(value):
            found.append((path + key, value))
    return found


if __name__ == "__main__":
    main()
