"""`trc2 continue` against the Hugging Face Trainer: the same Llama, batches and evaluations, in turns, in one process.

    python benchmarks/hf_trainer.py

Both have the same weights, the same rows in the same order, float32, AdamW with the same settings, clipping and a
constant learning rate. Both score as many held-out rows, before the first step and every few steps. A turn is a step
with all that follows it, up to the beginning of the next. Peak memory is taken in a process of its own for each.
They differ in the loss: the Trainer forms all logits and lets autograd keep them, and our loss never holds more than a
chunk. Replay is off, because the Trainer has none.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from trc2.config import TaskConfig
from trc2.continuing.request import ContinuationRequest, child_config
from trc2.runs.folder import RunFolder
from trc2.runs.records import Record
from trc2.stream.prepare import prepare_stream
from trc2.stream.tokenizer import train_bpe
from trc2.system.machine import peak_memory_bytes
from trc2.training.loop import Trainer
from trc2.training.setup import set_up_process

ROOT = Path(__file__).resolve().parents[1]
ROWS, LENGTH, VOCAB, RATE = 8, 256, 32_000, 1e-4
EVERY, EVAL_BATCHES = 8, 4
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "bake",
    "pies",
]


@dataclass
class Turns:
    """Lets a training loop in a thread of its own run one step at a time."""

    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    done: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    losses: list[float] = field(default_factory=list)
    failure: BaseException | None = None

    def wait(self) -> None:
        """Called by the loop before every step."""
        self.done.release()
        self.go.acquire()

    def start(self, loop: Callable[[], object]) -> None:
        """Run the loop up to its first step, which comes after the first evaluation."""

        def run() -> None:
            try:
                loop()
            except BaseException as error:  # the main thread would wait for ever
                self.failure = error
            self.done.release()

        threading.Thread(target=run, daemon=True).start()
        self._await()

    def turn(self) -> None:
        self.go.release()
        self._await()

    def _await(self) -> None:
        self.done.acquire()
        if self.failure is not None:
            raise self.failure


def write_model(folder: Path) -> None:
    """A small Llama with a vocabulary of the usual size. Its tokenizer knows few words, which costs nothing here."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 8}
    config = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, tie_word_embeddings=True, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(train_bpe([" ".join(WORDS)] * 9, 400).to_json())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_text(folder: Path) -> None:
    """Fixed text: enough documents for all steps, and for the held-out rows."""
    rng = random.Random(0)
    for split, documents in (("train", 900), ("validation", 120)):
        rows = [json.dumps({"text": " ".join(rng.choices(WORDS, k=150))}) for _ in range(documents)]
        folder.mkdir(exist_ok=True)
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")


class InTurns(Trainer):
    """Our loop, which waits for its turn before every step."""

    turns: Turns

    def train_step(self) -> Record:
        self.turns.wait()
        record = super().train_step()
        self.turns.losses.append(record.metrics["train/loss_lm"])
        return record


def our_loop(home: Path, steps: int) -> InTurns:
    """The loop of `trc2 continue MODEL --task words=TEXT` with these settings."""
    out = home / "child"
    settings = (
        "model.replay=false", f"train.batch_size={ROWS}", f"train.sequence_length={LENGTH}",
        f"train.learning_rate={RATE}", "train.warmup_steps=0", "train.min_lr_ratio=1", "train.precision=float32",
        f"eval.every_steps={EVERY}", f"eval.batch_size={ROWS}", f"eval.max_batches={EVAL_BATCHES}",
        "eval.text_sequences=0", "eval.test=false", "output.checkpoint_every=1000000", "output.device=cpu",
        f"output.threads={torch.get_num_threads()}", f"stream.cache={home / 'cache'}",
    )  # fmt: skip
    task = TaskConfig(name="words", folder=str(home / "text"), steps=steps)
    config = child_config(home / "model", ContinuationRequest((task,), None, settings), out)
    set_up_process(config)
    assert config.stream is not None
    return InTurns(config, prepare_stream(config.stream), RunFolder(out), [])


def ours(home: Path, steps: int) -> Turns:
    trainer = our_loop(home, steps)
    trainer.turns = Turns()
    trainer.turns.start(trainer.run)
    return trainer.turns


def write_rows(home: Path, steps: int) -> None:
    """Write the rows of our steps in their order, and our validation rows, as datasets for the Trainer."""
    trainer = our_loop(home, steps)
    train = [batch for step in range(steps) for batch in trainer.stream_data.batches(step, trainer.share)]
    held_out = list(trainer.stream_data.tasks["words"].eval_batches("validation", ROWS))[:EVAL_BATCHES]
    for name, batches in (("train", train), ("held_out", held_out)):
        rows = [(x.clone(), y.clone()) for batch in batches for x, y in zip(batch.x, batch.y, strict=True)]
        torch.save(rows, home / f"{name}.pt")


def read_rows(home: Path, name: str) -> list[dict[str, Tensor]]:
    rows = torch.load(home / f"{name}.pt", weights_only=True)
    return [{"input_ids": x, "labels": y, "shift_labels": y} for x, y in rows]


def theirs(home: Path, steps: int) -> Turns:
    turns = Turns()
    train, held_out = read_rows(home, "train"), read_rows(home, "held_out")

    class Wait(transformers.TrainerCallback):
        def on_step_begin(self, *args: object, **kwargs: object) -> None:
            turns.wait()

        def on_log(self, args: object, state: object, control: object, logs: Any = None, **_: object) -> None:
            if "loss" in (logs or {}):
                turns.losses.append(float(logs["loss"]))

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *args: object) -> SequentialSampler:
            return SequentialSampler(train)

    model = LlamaForCausalLM.from_pretrained(home / "model", dtype=torch.float32)
    arguments = TrainingArguments(
        str(home / "trainer"), per_device_train_batch_size=ROWS, per_device_eval_batch_size=ROWS, max_steps=steps,
        learning_rate=RATE, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, lr_scheduler_type="constant",
        max_grad_norm=1.0, eval_strategy="steps", eval_steps=EVERY, eval_on_start=True, save_strategy="no",
        logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
        remove_unused_columns=False, prediction_loss_only=True,
    )  # fmt: skip
    trainer = InOrder(
        model=model, args=arguments, train_dataset=train, eval_dataset=held_out,
        callbacks=[Wait()],
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    turns.start(trainer.train)
    return turns


SIDES: dict[str, Callable[[Path, int], Turns]] = {"trc2": ours, "trainer": theirs}


def peak(side: str, home: Path) -> dict[str, float]:
    """Megabytes of a process that takes steps and evaluates, and how many of them came after it was set up."""
    before = peak_memory_bytes()
    turns = SIDES[side](home, 2 * EVERY)
    for _ in range(EVERY + 1):
        turns.turn()
    return {"whole process": peak_memory_bytes() / 1e6, "above imports": (peak_memory_bytes() - before) / 1e6}


def measure(home: Path, rounds: int) -> dict[str, Any]:
    """Turns in alternation. The first period, which warms up, is not counted."""
    sides = {side: build(home, (rounds + 1) * EVERY) for side, build in SIDES.items()}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(EVERY * rounds):
        for side in list(SIDES) if number % 2 else list(SIDES)[::-1]:
            begun = time.process_time()
            sides[side].turn()
            seconds[side].append(time.process_time() - begun)
    counted, plain = {}, {}
    for side, values in seconds.items():
        periods = [values[first : first + EVERY] for first in range(EVERY, len(values), EVERY)]
        counted[side] = [sum(period) for period in periods]
        plain[side] = [value for period in periods for value in period[:-1]]  # the last one evaluates
    ratios = [a / b for a, b in zip(counted["trainer"], counted["trc2"], strict=True)]
    return {
        "cpu_seconds": {
            side: {"step": statistics.median(plain[side]), "period": statistics.median(counted[side])} for side in SIDES
        },
        "speed_against_trainer": statistics.median(ratios),
        "speed_against_trainer_range": [min(ratios), max(ratios)],
        "step_speed_against_trainer": statistics.median(plain["trainer"]) / statistics.median(plain["trc2"]),
        "losses_at_every_period": {side: turns.losses[::EVERY] for side, turns in sides.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "hf_trainer.json")
    parser.add_argument("--rounds", type=int, default=5, help=f"periods of {EVERY} steps and an evaluation")
    parser.add_argument("--peak", choices=SIDES, help="measure the memory of one side in this process")
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.peak:
        print(json.dumps(peak(options.peak, options.home)), flush=True)
        os._exit(0)  # the loop waits for a turn that never comes
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        write_model(home / "model")
        write_text(home / "text")
        write_rows(home, (options.rounds + 1) * EVERY)
        command = [sys.executable, __file__, "--home", str(home), "--peak"]
        memory = {}
        for side in SIDES:
            done = subprocess.run([*command, side], check=True, capture_output=True, text=True)
            memory[side] = json.loads(done.stdout.splitlines()[-1])
        found = {
            "model": f"Llama, 6 layers of width 256, vocabulary {VOCAB}, float32",
            "batch": f"{ROWS} rows of {LENGTH} tokens; every {EVERY} steps {EVAL_BATCHES} batches are scored",
            "threads": torch.get_num_threads(),
            **measure(home, options.rounds),
            "peak_megabytes": memory,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=2) + "\n")
        show(found)
        sys.stdout.flush()
        os._exit(0)


def show(found: dict[str, Any]) -> None:
    from rich.console import Console

    from trc2.system.console import table_of

    rows = []
    for side, name in (("trc2", "trc2 continue"), ("trainer", "transformers.Trainer")):
        seconds, memory = found["cpu_seconds"][side].values(), found["peak_megabytes"][side].values()
        rows.append([name, *(f"{value:.2f}" for value in seconds), *(f"{value:,.0f}" for value in memory)])
    columns = ("", "s a step", f"s for {EVERY} steps and an evaluation", "peak MB", "peak MB above imports")
    low, high = found["speed_against_trainer_range"]
    caption = f"trc2 ÷ Trainer: {found['speed_against_trainer']:.2f} times as fast ({low:.2f} to {high:.2f})"
    Console().print(table_of(columns, rows, "wrrrr", title=found["model"], caption=caption))


if __name__ == "__main__":
    main()
