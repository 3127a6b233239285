"""The world size does not change what is learned: N ranks with a micro-batches each equal one rank with N·a."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from rich.console import Console

from tests.chats import conversations, write_rows, write_tokenizer
from tests.distributed.several import alone, together
from trc2.backbones.saved import load_model
from trc2.config import RunConfig, TaskConfig
from trc2.continuing.continue_run import continue_run
from trc2.distributed.join import joined
from trc2.hf.export import export_run
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint
from trc2.runs.folder import RunFolder
from trc2.training.loop import Trainer
from trc2.training.resume import resume_run
from trc2.training.setup import Interrupted, start_run
from trc2.verify.kill_tests import TIMED, compare_runs

QUIET = Console(quiet=True)
MakeRun = Callable[..., RunConfig]
TASKS = ("fruit", "tools")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks in which no word comes twice in a row.

    A row that begins with the same token twice has the same state twice, hence two equal surprises, and rounding
    decides which of the two is remembered.
    """
    root = tmp_path_factory.mktemp("ranks")
    words = {
        "fruit": ["apple", "pear", "plum", "fig", "lime", "kiwi"],
        "tools": ["saw", "axe", "drill", "file", "rasp", "awl"],
    }
    for name, choices in words.items():
        rng = random.Random(name)
        (root / name).mkdir()
        for split, documents in (("train", 60), ("validation", 8), ("test", 8)):
            texts = []
            for number in range(documents):
                place, said = 0, [split, str(number)]
                for _ in range(60):
                    place = (place + rng.randrange(1, len(choices))) % len(choices)
                    said.append(choices[place])
                texts.append(json.dumps({"text": " ".join(said)}))
            (root / name / f"{split}.jsonl").write_text("\n".join(texts) + "\n")
    return root


@pytest.fixture
def tiny_run(tiny_run: MakeRun, data: Path) -> MakeRun:
    """The usual small run, on this data."""
    tasks = [{"name": name, "folder": name, "steps": 6} for name in TASKS]

    def build(**sections: dict[str, Any]) -> RunConfig:
        stream = {"data_root": data, "cache": data / "cache", "tasks": tasks, **sections.pop("stream", {})}
        return tiny_run(stream=stream, **sections)

    return build


def at(tiny_run: MakeRun, folder: Path, *, steps: tuple[int, int] = (6, 6), **changes: dict[str, Any]) -> RunConfig:
    """Everything on: replay, recall, controller, memory, side-effect checks, all ranks compared after every step."""
    output = {"folder": folder, "checkpoint_every": 5, "threads": 1, "check_ranks": True}
    measured = {"every_steps": 6, "max_batches": 1, "text_sequences": 2, "recall": "always"}
    train = {"sequence_length": 16, "batch_size": 2, "micro_batches": 4, "warmup_steps": 2}
    return tiny_run(
        **{
            **changes,
            "output": output | changes.get("output", {}),
            "train": train | changes.get("train", {}),
            "eval": measured | changes.get("eval", {}),
            "stream": {"tasks": [{"name": n, "folder": n, "steps": s} for n, s in zip(TASKS, steps, strict=True)]},
        }
    )


def last_checkpoint(folder: Path) -> Any:
    return load_checkpoint(list_checkpoints(folder / "checkpoints")[-1])


def distance(a: Path, b: Path) -> float:
    """The largest difference between two runs: tensors, relative to their size, and all their records."""
    largest = 0.0
    first, second = last_checkpoint(a), last_checkpoint(b)
    assert first.tensors.keys() == second.tensors.keys()
    for name, tensor in first.tensors.items():
        other = second.tensors[name]
        if not tensor.is_floating_point():
            assert torch.equal(tensor, other), name
        elif tensor.numel():
            gap = (tensor.double() - other.double()).abs().max() / tensor.double().abs().max().clamp_min(1.0)
            largest = max(largest, float(gap))
    records = [[r for r in RunFolder(path).records() if r.kind != "resume"] for path in (a, b)]
    for one, two in zip(*records, strict=True):
        assert (one.kind, one.step, one.task, one.metrics.keys()) == (two.kind, two.step, two.task, two.metrics.keys())
        for name, value in one.metrics.items():
            if not name.startswith(TIMED) and not (math.isnan(value) and math.isnan(two.metrics[name])):
                largest = max(largest, abs(value - two.metrics[name]) / max(1.0, abs(value)))
    return largest


def test_fifty_steps_with_replay_controller_and_ewc_are_those_of_one_process(tiny_run: MakeRun, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "steps": (36, 14),
        "model": {"replay_coefficient": 0.01},
        "strategy": {"name": "ewc", "strength": 0.01, "fisher_sequences": 4},
        "control": {"every_steps": 2, "target_gap": 0.0},
        "train": {"learning_rate": 1e-2, "micro_batches": 2},
        "eval": {"every_steps": 25, "text_sequences": 0},
        "output": {"checkpoint_every": 1000},
    }
    alone(start_run, at(tiny_run, tmp_path / "one", **settings), QUIET, double=True)
    together(2, start_run, at(tiny_run, tmp_path / "two", **settings), QUIET, double=True)
    assert distance(tmp_path / "one", tmp_path / "two") < 1e-9
    told = RunFolder(tmp_path / "two").records()
    metrics = [record.metrics for record in told if record.kind == "train"]
    assert len(metrics) == 50
    assert metrics[-1]["strategy/penalty"] > 0
    assert metrics[-1]["train/loss_replay"] > 0
    assert metrics[-1]["hippocampus/fill"] == 1.0
    test = next(record.metrics for record in told if record.kind == "test")
    assert test["test/fruit/recall_loss"] != test["test/fruit/loss"]
    assert len({record.metrics["replay/coefficient"] for record in told if record.kind == "control"}) > 1


def train_each(configs: list[RunConfig]) -> None:
    with joined(torch.device("cpu")):  # one group for all of them
        for config in configs:
            start_run(config, QUIET)


def test_every_kind_of_backbone_and_strategy_learns_alike_on_two_ranks(tiny_run: MakeRun, tmp_path: Path) -> None:
    """LoraDRS changes at a boundary what learns. Dropout draws masks. Blocks are divided, recomputed, run in halves.

    And a small memory.
    """
    small = {"vocab_size": 300, "d_model": 16, "num_heads": 4, "max_positions": 32, "replay": True}
    small |= {"replay_chunk_length": 8, "num_layers": 2}
    cases: dict[str, dict[str, Any]] = {
        "lora": {"model": {**small, "name": "lora_drs", "num_adapters": 1, "rank": 2}},
        "agem": {"model": {**small, "name": "deepseek_moe", "dropout": 0.1}, "strategy": {"name": "agem", "chunks": 2}},
        "l2": {"model": {**small, "name": "blk_attn_res", "num_residual_blocks": 2}, "strategy": {"name": "l2"}},
        "teacher": {"model": {**small, "name": "transformer"}, "strategy": {"name": "slow_cortex", "serve": True}},
        "der": {"model": {**small, "name": "transformer"}, "strategy": {"name": "der", "chunk_length": 8, "chunks": 9}},
        "memory": {"model": {**tiny_run().model.model_dump(), "memory_slots": 8}},
    }
    divided: dict[str, Any] = {"agem": {"parallel": "fsdp"}, "l2": {"parallel": "fsdp", "recompute": True}}

    def configs(group: str, outputs: dict[str, Any]) -> list[RunConfig]:
        base = {
            name: at(
                tiny_run,
                tmp_path / group / name,
                steps=(2, 2),
                output=outputs.get(name, {}),
                eval={"text_sequences": 0},
            ).model_dump()
            for name in cases
        }
        return [RunConfig(**{**base[name], **case}) for name, case in cases.items()]

    alone(train_each, configs("one", {}), double=True)
    together(2, train_each, configs("two", divided), double=True)
    for name in cases:
        assert distance(tmp_path / "one" / name, tmp_path / "two" / name) < 1e-9, name


@pytest.mark.slow
def test_conversations_are_learned_alike_on_two_ranks(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Micro-batches have different numbers of labels, and stored chunks keep theirs."""
    write_tokenizer(tmp_path / "tokenizer")
    write_rows(tmp_path / "chats" / "train.jsonl", [*conversations(90), {"text": "the sky is blue " * 20}])
    write_rows(tmp_path / "chats" / "validation.jsonl", conversations(99)[90:])
    small = {"vocab_size": 300, "d_model": 16, "num_heads": 4, "max_positions": 32, "num_layers": 2, "replay": True}
    model = {**small, "name": "transformer", "replay_chunk_length": 8, "replay_share": 0.4, "replay_keep": "loss"}
    model |= {"replay_recent_chunks": 16, "replay_long_chunks": 16}
    strategies = ({"name": "none"}, {"name": "der", "chunk_length": 8}, {"name": "slow_cortex"}, {"name": "agem"})

    def configs(group: str) -> list[RunConfig]:
        folder, made = tmp_path / group, []
        for strategy in strategies:
            base = at(tiny_run, folder / strategy["name"]).model_dump()
            tasks = [{"name": name, "folder": "chats", "steps": 3} for name in ("one", "two")]
            base["stream"] |= {"tasks": tasks, "data_root": tmp_path, "cache": tmp_path / "cache"}
            base["stream"]["tokenizer"] = {"path": str(tmp_path / "tokenizer")}
            made.append(RunConfig(**{**base, "model": model, "strategy": strategy}))
        return made

    alone(train_each, configs("one"), double=True)
    together(2, train_each, configs("two"), double=True)
    for strategy in strategies:
        assert distance(tmp_path / "one" / strategy["name"], tmp_path / "two" / strategy["name"]) < 1e-9, strategy
    assert (last_checkpoint(tmp_path / "two" / "none").tensors["model.replay.long"] < 0).any()
    assert (last_checkpoint(tmp_path / "two" / "der").tensors["strategy.tokens"] < 0).any()


# ------------------------------------------------------------------------------------------------ stopping, going on


def stop_at(step: int, config: RunConfig) -> str:
    """Ask the last rank alone to stop in a step. All of them must."""
    plain = Trainer.train_step

    def asked(self: Trainer) -> object:
        record = plain(self)
        self.stop_requested = self.ranks.rank == self.ranks.world - 1 and self.state.progress.step == step
        return record

    Trainer.train_step = asked  # type: ignore[method-assign, assignment]
    try:
        if RunFolder(config.output.folder).is_run:
            resume_run(config.output.folder, [], QUIET)
        else:
            start_run(config, QUIET)
    except Interrupted as stopped:
        return str(stopped)
    return "ended"


def test_a_run_goes_on_with_another_number_of_ranks(tiny_run: MakeRun, tmp_path: Path) -> None:
    config = at(tiny_run, tmp_path / "parted")
    told = together(2, stop_at, 3, config, double=True)
    assert all("Stopped at step 3 and saved" in sentence for sentence in told)
    assert "Stopped at step 8 and saved" in alone(stop_at, 8, config, double=True)
    together(2, resume_run, tmp_path / "parted", [], QUIET, double=True)
    alone(start_run, at(tiny_run, tmp_path / "whole"), QUIET, double=True)
    assert distance(tmp_path / "whole", tmp_path / "parted") < 1e-9


@pytest.mark.slow
def test_two_then_one_then_three_ranks(tiny_run: MakeRun, tmp_path: Path) -> None:
    config = at(tiny_run, tmp_path / "parted", train={"micro_batches": 6})
    together(2, stop_at, 3, config, double=True)
    alone(stop_at, 8, config, double=True)
    together(3, resume_run, tmp_path / "parted", [], QUIET, double=True)
    together(3, start_run, at(tiny_run, tmp_path / "whole", train={"micro_batches": 6}), QUIET, double=True)
    assert distance(tmp_path / "whole", tmp_path / "parted") < 1e-9


def test_a_finished_run_is_taught_one_more_task_by_two_ranks(tiny_run: MakeRun, tmp_path: Path) -> None:
    # Sums of two numbers do not depend on their order, so two micro-batches are equal to the bit.
    alone(start_run, at(tiny_run, tmp_path / "parent", steps=(2, 2), train={"micro_batches": 2}), QUIET)
    task = TaskConfig(name="more", folder="fruit", steps=3)
    for world, name in ((1, "one"), (2, "two")):
        together(world, continue_run, tmp_path / "parent", tmp_path / name, task, QUIET)
    different = compare_runs(tmp_path / "one", tmp_path / "two")[0]
    assert different in ([], ["state.rng"])  # checks of annotations draw from Python's generator
    assert not list(tmp_path.glob(".*"))


# ------------------------------------------------------------------------------------------------ divided weights


def test_divided_weights_learn_in_single_precision_too(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Which FSDP adds up by another operation than double precision."""
    divided, whole = tmp_path / "divided", tmp_path / "whole"
    together(2, start_run, at(tiny_run, divided, steps=(2, 2), output={"parallel": "fsdp"}), QUIET)
    alone(start_run, at(tiny_run, whole, steps=(2, 2)), QUIET)
    assert distance(divided, whole) < 1e-3


def test_divided_weights_learn_the_same_and_are_saved_in_parts(tiny_run: MakeRun, tmp_path: Path) -> None:
    """FSDP, with EWC, stopped by two ranks, gone on with by one that holds everything, ended by two. Then exported."""
    fsdp: dict[str, Any] = {"parallel": "fsdp", "keep_checkpoints": 9}
    settings: dict[str, Any] = {"strategy": {"name": "ewc", "strength": 50.0, "fisher_sequences": 2}}
    config = at(tiny_run, tmp_path / "parted", output=fsdp, **settings)
    together(2, stop_at, 7, config, double=True)
    saved = tmp_path / "parted" / "checkpoints" / "step-00000007"
    rows_files = [f"rows-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert {path.name for path in saved.iterdir()} == {
        "manifest.json", "state.json", "tensors.safetensors", *rows_files
    }  # fmt: skip
    rows, whole = (safetensors.torch.load_file(saved / name) for name in (rows_files[1], "tensors.safetensors"))
    assert {"model.cortex.embedding.weight", "optimizer.0.exp_avg"} <= rows.keys()
    assert {"model.cortex.hippocampus.keys", "model.cortex.thalamus.back.weight"} <= whole.keys()
    alone(stop_at, 9, config, double=True)
    together(2, resume_run, tmp_path / "parted", ["output.parallel=fsdp"], QUIET, double=True)
    alone(start_run, at(tiny_run, tmp_path / "whole", **settings), QUIET, double=True)
    assert distance(tmp_path / "whole", tmp_path / "parted") < 1e-9
    one, two = (export_run(tmp_path / name, tmp_path / f"{name} exported", "0") for name in ("whole", "parted"))
    assert [path.name for path in one] == [path.name for path in two]
    ours, theirs = (load_model(tmp_path / f"{name} exported").state_dict() for name in ("whole", "parted"))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-9, rtol=1e-9)


# ------------------------------------------------------------------------------------------------ one decision


def spoil_one_step(config: RunConfig) -> list[str]:
    """The last rank's gradients are not finite in step 3."""
    plain = Trainer.train_step

    def spoilt(self: Trainer) -> object:
        weight = self.state.model.get_input_embeddings().weight
        is_hit = self.state.progress.step == 2 and self.ranks.rank == self.ranks.world - 1
        handle = weight.register_hook(lambda gradient: gradient * math.nan) if is_hit else None
        try:
            return plain(self)
        finally:
            if handle is not None:
                handle.remove()

    Trainer.train_step = spoilt  # type: ignore[method-assign, assignment]
    start_run(config, QUIET)
    return [record.kind for record in RunFolder(config.output.folder).records()][:5]


def test_a_step_that_fails_on_one_rank_fails_on_all_and_only_the_first_writes(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    kinds, _ = together(2, spoil_one_step, at(tiny_run, tmp_path / "run", steps=(3, 3)))
    assert kinds == ["eval", "train", "train", "nonfinite", "eval"]
    steps = [record.step for record in RunFolder(tmp_path / "run").records() if record.kind in ("train", "nonfinite")]
    assert steps == [1, 2, 3, 4, 5, 6]  # once each
