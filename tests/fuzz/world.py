"""The small data, runs and models that cases start from: made once, kept in memory, laid out again for every case."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from tests.fuzz.values import ODD_RUN, ODDITIES
from trc2 import __version__
from trc2.config import RunConfig, TaskConfig
from trc2.continuing.acceptance import ACCEPTANCE_FILE, judge_child
from trc2.continuing.continue_run import continue_run
from trc2.hf.export import export_run
from trc2.stream.document import Document
from trc2.teaching.teach import teach
from trc2.training.setup import start_run
from trc2.versions.registry import Versions

TASKS = {"fruit": ("apple", "pear", "plum", "fig"), "tools": ("saw", "axe", "drill", "file"), "extra": ("red", "blue")}
STREAM: dict[str, Any] = {
    "tasks": [{"name": name, "folder": name, "steps": 3} for name in ("fruit", "tools")],
    "data_root": "data", "cache": "cache", "tokenizer": {"vocab_size": 300}, "control_batches": 1,
}  # fmt: skip
REST: dict[str, Any] = {
    "train": {"sequence_length": 8, "batch_size": 2, "warmup_steps": 1},
    "control": {"every_steps": 2, "batch_range": [1, 2]},
    "eval": {"every_steps": 3, "batch_size": 2, "max_batches": 1, "text_sequences": 0, "test": False},
}
MODELS: dict[str, dict[str, Any]] = {
    "run": {
        "vocab_size": 300, "d_model": 8, "num_columns": 2, "num_heads": 2, "num_kv_heads": 1, "max_positions": 16,
        "num_experts": 2, "d_ff": 8, "thalamic_rank": 2, "memory_slots": 8, "memory_key_dim": 4,
        "replay_recent_chunks": 4, "replay_long_chunks": 4, "replay_chunk_length": 4, "replay_batch_size": 2,
    },
    "plain": {
        "name": "transformer", "vocab_size": 300, "d_model": 8, "num_layers": 1, "num_heads": 2, "max_positions": 16,
        "d_ff": 8,
    },
}  # fmt: skip
RECIPES = {"run": "recipe.yaml", "plain": "plain.yaml"}
CUTS = {"run": "cut", "plain": "plain_cut", "child": "child_cut"}
LAST = {"run": "step-00000006", "plain": "step-00000006", "child": "step-00000009"}
# Files that no computation reads: a run continues in the same way whatever happens to them.
IDLE = ("summary.md", "summary.png", "hippocampus.png", "lock", "lock.owner", "environment.json", "budget.json")
TIME_NS = 1_700_000_000_000_000_000  # of every data file, because the cache knows them by it

Files = dict[str, bytes]


class World:
    """The files of every part by their path, as bytes. `root` holds them on disk as well."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        with inside(root):
            self.parts = _make()

    def lay_out(self, parts: tuple[str, ...], folder: Path) -> None:
        """Fresh copies of some parts, or of single files or folders of a part: `run/config.yaml`."""
        made: set[Path] = {folder}
        for wanted in parts:
            part = wanted.split("/")[0]
            for name, content in self.parts[part].items():
                if part != wanted and not name.startswith(wanted):
                    continue
                path = folder / name
                if path.parent not in made:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    made.add(path.parent)
                path.write_bytes(content)
                if part in ("data", "files"):
                    os.utime(path, ns=(TIME_NS, TIME_NS))

    def names(self, part: str) -> list[str]:
        return sorted(self.parts[part])


def _make() -> dict[str, Files]:
    """Train, continue, cut, export. The current folder becomes the world."""
    _write_data(Path("data"))
    _write_files(Path("files"))
    quiet = Console(quiet=True)
    for name, model in MODELS.items():
        output = {"folder": "new", "checkpoint_every": 2, "keep_checkpoints": 2, "threads": 1}
        config = RunConfig(model=model, stream=STREAM, output=output, **REST)
        Path(RECIPES[name]).write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        start_run(config.replace(output={**output, "folder": name}), quiet)
    start_run(config.replace(output={**output, "folder": "other"}, train={**REST["train"], "seed": 1}), quiet)
    _make_child(quiet)
    versions = Versions(Path("versions"))
    versions.promote(Path("plain"), first=True)
    versions.promote(Path("child"), anyway=True)
    for whole, cut in CUTS.items():
        for name in IDLE:
            Path(whole, name).touch()
        _cut(Path(whole), Path(cut))
    shutil.copytree("plain", ODD_RUN)
    export_run(Path("run"), Path("model"), __version__, with_replay=True)
    _write_llama(Path("llama"))
    shutil.copytree("model", "taught")
    teach("taught", (Document(f"an apple and a pear, {n} times", f"notes.txt:{n}") for n in range(9)), print)
    models = ("model", "taught", "llama")
    folders = ("data", "files", "cache", *models, "other", "versions", ODD_RUN, *CUTS, *CUTS.values())
    recipes = {name: Path(name).read_bytes() for name in RECIPES.values()}
    return {**{name: _read(Path(name)) for name in folders}, "recipes": recipes}


def _make_child(quiet: Console) -> None:
    """A continued run that forgets far more than its limit, and was refused for that."""
    extra = TaskConfig(name="extra", folder="extra", steps=3)
    continue_run(Path("plain"), Path("child"), extra, quiet, limit=0.05, overrides=["train.learning_rate=3"])
    verdict = judge_child(Path("child"), print)
    assert verdict is not None
    assert all(task.rise.value > 100 for task in verdict.tasks), verdict


def _read(folder: Path) -> Files:
    return {path.as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _cut(whole: Path, folder: Path) -> None:
    """The run as a kill before its last step leaves it: no later checkpoint, no later line in its metrics log."""
    shutil.copytree(whole, folder)
    shutil.rmtree(sorted((folder / "checkpoints").iterdir())[-1])
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    last = max(json.loads(line)["step"] for line in lines)
    kept = [line for line in lines if json.loads(line)["step"] < last]
    (folder / "metrics.jsonl").write_text("".join(kept), encoding="utf-8")
    (folder / ACCEPTANCE_FILE).unlink(missing_ok=True)


def _write_llama(folder: Path) -> None:
    """A folder as transformers saves it, with the tokenizer of the exported model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 300, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(Path("model") / name, folder / name)


def _write_data(root: Path) -> None:
    rng = random.Random(0)
    for name, vocabulary in TASKS.items():
        (root / name).mkdir(parents=True)
        for split, count in (("train", 12), ("validation", 2), ("test", 2)):
            rows = _rows(rng, vocabulary, split, count)
            path = root / name / f"{split}.jsonl"
            if name == "extra" and split == "train":
                path, rows = path.with_name("train.txt.gz"), gzip.compress(rows, mtime=0)
            path.write_bytes(rows)
            os.utime(path, ns=(TIME_NS, TIME_NS))


def _rows(rng: random.Random, vocabulary: tuple[str, ...], split: str, count: int) -> bytes:
    texts = [f"{split} {n}: " + " ".join(rng.choice(vocabulary) for _ in range(12)) for n in range(count)]
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def _write_files(folder: Path) -> None:
    """The same documents in every kind of file."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    folder.mkdir()
    rows = _rows(random.Random(1), TASKS["fruit"], "train", 8)
    texts = [json.loads(line)["text"] for line in rows.splitlines()]
    plain = {"rows.jsonl": rows, "lines.txt": "\n\n".join(texts).encode() + b"\n"}
    for name, content in plain.items():
        (folder / name).write_bytes(content)
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        (folder / f"{name}.zst").write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content))
    pq.write_table(pa.table({"text": texts}), folder / "rows.parquet")


def add_oddities(folder: Path) -> None:
    """Names that exist but are not useful."""
    loop, dangling, empty, empty_file, *files = ODDITIES
    (folder / loop).symlink_to(loop)
    (folder / dangling).symlink_to("nowhere")
    (folder / empty).mkdir()
    (folder / empty_file).write_bytes(b"")
    for name in files:
        (folder / name).write_bytes(b'{"text": "an apple and a pear"}\n')


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
