"""A whole training step of a Llama: ours against the Hugging Face Trainer's, in turns, in one process.

    python benchmarks/hf_trainer.py --out benchmarks/hf_trainer.json

Both have the same weights, the same rows, AdamW with the same settings, clipping, and a learning rate per step. What
differs is what is compared: the Trainer forms all logits, casts them to float32 and lets autograd keep them; our loss
never holds more than a chunk. Peak memory is taken in a process of its own for each, above what it had before the
first step. Replay is off: the Trainer has none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from trc2 import RunConfig
from trc2.runs.folder import RunFolder
from trc2.stream.prepare import prepare_stream
from trc2.stream.tokenizer import train_bpe
from trc2.system.machine import peak_memory_bytes
from trc2.training.loop import Trainer
from trc2.training.setup import set_up_process

ROWS, LENGTH, VOCAB = 8, 256, 32_000
Step = Callable[[], float]


def llama(folder: Path) -> None:
    """A small Llama with a vocabulary of the usual size; its tokenizer knows few words, which costs nothing here."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 8}
    config = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, tie_word_embeddings=True, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(
        train_bpe(["the quick brown fox jumps over the lazy dog"] * 9, 400).to_json()
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def ours(folder: Path, out: Path) -> Step:
    config = RunConfig(
        model={"name": "hf", "pretrained": str(folder), "replay": False},
        stream={"tasks": [{"name": "prose", "builtin": "prose", "steps": 10_000}]},
        train={"sequence_length": LENGTH, "batch_size": ROWS, "learning_rate": 1e-4},
        output={"folder": out, "threads": torch.get_num_threads()},
    )
    set_up_process(config)
    assert config.stream is not None
    trainer = Trainer(config, prepare_stream(config.stream), RunFolder(out), [])
    return lambda: trainer.train_step().metrics["train/loss_lm"]


def theirs(folder: Path, out: Path) -> Step:
    """The Trainer's own loop, stopped after every step by a thread that waits for its turn."""
    import threading

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = torch.randint(400, (4096, LENGTH), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in rows]
    turn, done = threading.Semaphore(0), threading.Semaphore(0)
    losses: list[float] = []

    class Turns(transformers.TrainerCallback):
        def on_step_begin(self, *args: object, **kwargs: object) -> None:
            turn.acquire()

        def on_step_end(self, *args: object, **kwargs: object) -> None:
            done.release()

        def on_log(self, args: object, state: object, control: object, logs: dict | None = None, **_: object) -> None:
            losses.append(float((logs or {}).get("loss", 0.0)))

    arguments = TrainingArguments(
        str(out), per_device_train_batch_size=ROWS, max_steps=10_000, learning_rate=1e-4, weight_decay=0.1,
        adam_beta2=0.95, lr_scheduler_type="cosine", warmup_steps=20, max_grad_norm=1.0, report_to=[],
        save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Turns()])
    trainer.remove_callback(transformers.PrinterCallback)
    threading.Thread(target=trainer.train, daemon=True).start()

    def step() -> float:
        turn.release()
        done.acquire()
        return losses[-1] if losses else 0.0

    return step


SIDES: dict[str, Callable[[Path, Path], Step]] = {"trc2": ours, "trainer": theirs}


def peak(side: str, folder: Path, out: Path) -> float:
    """Megabytes above those before the first step, in this process."""
    step = SIDES[side](folder, out)
    before = peak_memory_bytes()
    for _ in range(3):
        step()
    return (peak_memory_bytes() - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--peak", choices=SIDES)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if options.peak:
            print(peak(options.peak, options.model, root / "run"))
            os._exit(0)  # the Trainer's thread waits for a turn that never comes
        llama(root / "llama")
        command = [sys.executable, __file__, "--model", str(root / "llama"), "--peak"]
        memory = {
            side: float(subprocess.run([*command, side], check=True, capture_output=True, text=True).stdout.split()[-1])
            for side in SIDES
        }
        steps = {side: build(root / "llama", root / side) for side, build in SIDES.items()}
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        for round_ in range(options.steps + 3):
            order = list(SIDES) if round_ % 2 else list(SIDES)[::-1]
            for side in order:
                begun = time.process_time()
                steps[side]()
                if round_ >= 3:
                    seconds[side].append(time.process_time() - begun)
        ratios = [a / b for a, b in zip(seconds["trainer"], seconds["trc2"], strict=True)]
        found = {
            "model": f"Llama, 6 layers of width 256, vocabulary {VOCAB}; {ROWS} rows of {LENGTH} tokens, float32",
            "threads": torch.get_num_threads(),
            "steps": options.steps,
            "cpu_seconds_per_step": {side: statistics.median(values) for side, values in seconds.items()},
            "speed_against_trainer": statistics.median(ratios),
            "peak_megabytes_of_training": memory,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        text = json.dumps(found, indent=2)
        print(text)
        if options.out:
            options.out.write_text(text + "\n")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
