"""How long saving stops training: with the background writer, and if the trainer did the file work itself.

    python benchmarks/checkpoint_stall.py --recipe lab_trc2 --out benchmarks/checkpoint_stall.json

Both are timed in one process, interleaved, on the recipe's model with a filled optimizer. Medians are reported beside
the time of one training step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from trc2 import CortexNet, load_recipe
from trc2.runs.checkpoint import Checkpoint, pack_optimizer, save_checkpoint
from trc2.training.checkpoint_writer import CheckpointWriter
from trc2.training.optimizer import build_optimizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="lab_trc2")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/checkpoint_stall.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    run = load_recipe(arguments.recipe)
    net = CortexNet(run.model)
    optimizer = build_optimizer(net, run.train)
    x = torch.randint(run.model.vocab_size, (run.train.batch_size, run.train.sequence_length + 1))
    times: dict[str, list[float]] = {"step": [], "background": [], "in the loop": []}

    def timed(name: str, action: object) -> None:
        begun = time.perf_counter()
        action()  # type: ignore[operator]
        times[name].append(time.perf_counter() - begun)

    def step() -> None:
        _, aux = net(x[:, :-1], targets=x[:, 1:], return_logits=False)
        aux["loss"].backward()
        net.flush_pending_write()
        optimizer.step()
        optimizer.zero_grad()
        net.update_slow_targets()

    def checkpoint(number: int) -> Checkpoint:
        tensors = {f"model.{name}": tensor for name, tensor in net.state_dict().items()}
        return Checkpoint(number, {**tensors, **pack_optimizer(optimizer)}, {})

    step()
    with tempfile.TemporaryDirectory() as folder:
        writer = CheckpointWriter(Path(folder) / "a", 1)
        for number in range(arguments.repeats):
            timed("step", step)
            timed("background", lambda n=number: writer.write(checkpoint(n)))
            writer.wait()
            timed("in the loop", lambda n=number: save_checkpoint(Path(folder) / "b", checkpoint(n)))
        size = sum(file.stat().st_size for file in (Path(folder) / "a").rglob("*") if file.is_file())
    medians = {name: statistics.median(values) for name, values in times.items()}
    result = {
        "schema": 1,
        "command": f"python benchmarks/checkpoint_stall.py --recipe {arguments.recipe}",
        "checkpoint_mb": round(size / 1e6, 1),
        "median_seconds": {name: round(value, 4) for name, value in medians.items()},
        "stall_in_steps": round(medians["background"] / medians["step"], 3),
        "stall_in_steps_without_thread": round(medians["in the loop"] / medians["step"], 3),
    }
    print(json.dumps(result, indent=2))
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
