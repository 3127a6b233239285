"""Runs on documents and conversations: what is learned, stored, scored, resumed and judged."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.chats import conversations, messages, write_rows, write_tokenizer
from tests.conftest import QUIET, tiny_run_config, write_task
from trc2.config import RunConfig, TaskConfig
from trc2.continuing.acceptance import judge_child
from trc2.continuing.continue_run import continue_run
from trc2.evaluation.score import score_target
from trc2.hf.export import export_run
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.runs.folder import RunFolder
from trc2.runs.target import find_target
from trc2.stream.packed import COUNTED
from trc2.stream.prepare import prepare_stream
from trc2.training.loop import Trainer
from trc2.training.resume import resume_run
from trc2.training.setup import Interrupted, start_run
from trc2.verify.kill_tests import compare_runs
from trc2.versions.difference import compare

STREAM: dict[str, object] = {
    "tasks": [{"name": "chats", "folder": "chats", "steps": 6}, {"name": "tools", "folder": "tools", "steps": 4}],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that mixes documents and conversations, and a task of documents."""
    root = tmp_path_factory.mktemp("chats")
    write_tokenizer(root / "tokenizer")
    write_task(root, "tools", ["red", "green", "blue", "one"], documents=20)
    rows = conversations(120)
    write_rows(root / "chats" / "train.jsonl", [*rows[:90], {"text": "the sky is blue " * 10}])
    write_rows(root / "chats" / "validation.jsonl", rows[90:105])
    write_rows(root / "chats" / "test.jsonl", rows[105:])
    return root


def config_of(data: Path, folder: Path, **sections: dict[str, object]) -> RunConfig:
    model = {"vocab_size": 320, **sections.pop("model", {})}
    stream = {**STREAM, "tokenizer": {"path": str(data / "tokenizer")}, **sections.pop("stream", {})}
    output = {"folder": folder, "checkpoint_every": 3, "keep_checkpoints": 3, "threads": 1}
    return tiny_run_config(data, folder, model=model, stream=stream, output=output, **sections)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(config_of(data, tmp_path_factory.mktemp("whole") / "run"), QUIET)


def test_a_resumed_run_is_the_same_to_the_bit_without_cache_and_tokenizer_folder(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(shutil.copytree(data, tmp_path / "data"))
    plain = Trainer.train_step

    def interrupted(self: Trainer) -> object:
        record = plain(self)
        if self.state.progress.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return record

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", interrupted)
        config = config_of(own, tmp_path / "run")
        assert config.stream is not None
        config = config.replace(stream={**config.stream.model_dump(), "tokenizer": {"path": str(data / "tokenizer")}})
        with pytest.raises(Interrupted):
            start_run(config, QUIET)
    shutil.rmtree(own / "cache")
    (tmp_path / "hidden").mkdir()
    shutil.move(data / "tokenizer", tmp_path / "hidden")
    try:
        resume_run(tmp_path / "run", [], QUIET)
    finally:
        shutil.move(tmp_path / "hidden" / "tokenizer", data)
    assert compare_runs(whole, tmp_path / "run")[0] == []


def test_the_loss_of_a_step_is_the_mean_over_the_answers_of_all_micro_batches(data: Path, tmp_path: Path) -> None:
    config = config_of(data, tmp_path / "run", model={"memory": False, "thalamus": False})
    assert config.stream is not None
    trainer = Trainer(config, prepare_stream(config.stream), RunFolder(tmp_path / "run"), [])
    batches, model = trainer.stream_data.batches(0), trainer.state.model
    assert len(batches) == 2
    assert len({batch.num_labels for batch in batches}) == 2, "each has another number of labels"
    model.eval()
    losses = []
    for batch in batches:
        with torch.no_grad():
            scores = torch.log_softmax(model(batch.x)[0], dim=-1)
        for row, target in enumerate(batch.y):
            losses += [-scores[row, t, y] for t, y in enumerate(target.tolist()) if y != IGNORE_INDEX]
    model.train()
    assert trainer.train_step().metrics["train/loss_lm"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)


def test_stored_chunks_keep_their_labels(whole: Path) -> None:
    long = RunFolder(whole).checkpoint_of(10).tensors["model.replay.long"]
    assert (long < 0).any()
    assert (long >= 0).any()


def test_scores_are_of_answers(whole: Path, tmp_path: Path) -> None:
    scores = score_target(find_target(str(whole)), warn=print, tasks=["chats"])
    run = RunFolder(whole)
    config = run.config()
    assert config.stream is not None
    prepared = prepare_stream(config.stream, tokenizer=run.tokenizer(), known=run.data()["tasks"])
    task, model = prepared.tasks["chats"], run.model(print)[0].eval()
    tokens = torch.from_numpy(np.array(task.tokens("validation")).astype(np.int64))
    labels = np.array(task.labels("validation")) & COUNTED
    losses = []
    for window in range(8):  # two batches of four
        x = tokens[16 * window : 16 * window + 17]
        with torch.no_grad():
            logits = torch.log_softmax(model(x[None, :-1])[0][0], dim=-1)
        losses += [-logits[t, x[t + 1]] for t in range(16) if labels[16 * window + t + 1]]
    assert scores["chats"]["loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
    write_rows(tmp_path / "more.jsonl", conversations(3))
    of_file = score_target(find_target(str(whole)), warn=print, files=[tmp_path / "more.jsonl"])
    assert of_file[str(tmp_path / "more.jsonl")]["loss"] > 0


def test_a_mixture_of_all_tasks_trains(data: Path, tmp_path: Path) -> None:
    run = start_run(config_of(data, tmp_path / "run", stream={"mode": "joint"}), QUIET)
    assert (RunFolder(run).checkpoint_of(10).tensors["model.replay.recent"] < 0).any()


def test_prefilled_stores_have_labels(data: Path, tmp_path: Path) -> None:
    config = config_of(data, tmp_path / "run", stream={"replay_prefill_files": [str(data / "chats" / "train.jsonl")]})
    assert config.stream is not None
    trainer = Trainer(config, prepare_stream(config.stream), RunFolder(tmp_path / "run"), [])
    stores = trainer.state.model.replay
    assert stores is not None
    trainer.stream_data.fill(stores)
    task = trainer.stream_data.seeds[0]
    length = stores.chunk_length
    labels = np.array(task.labels("train")) & COUNTED > 0
    last = stores.num_seen - 1
    chunk = stores.recent[last % len(stores.recent)]
    assert (chunk >= 0).tolist() == labels[last * length : (last + 1) * length].tolist()


def test_the_next_week_is_judged_on_the_answers_of_the_week_before(whole: Path, tmp_path: Path) -> None:
    week = [messages(f"you two {number} are three", f"sky sky {number} number number") for number in range(40)]
    write_rows(tmp_path / "chats" / "train.jsonl", week)
    task = TaskConfig(name="chats", folder=str(tmp_path / "chats"), steps=2)
    child = continue_run(whole, tmp_path / "child", task, QUIET, limit=1e6)
    verdict = judge_child(child, pytest.fail, whole)
    assert verdict is not None
    judged = {task.task: task for task in verdict.tasks}
    earlier = judged["chats-earlier"]
    assert (earlier.documents, earlier.chats, judged["tools"].chats) == (15, 15, 0)
    assert earlier.text == "15 documents of chats-earlier/validation, only the answers"
    packed = RunFolder(whole).data()["tasks"]["chats"]["splits"]["test"]
    assert earlier.tokens in (packed["counted"], packed["counted"] - 1)  # the first token of a split is not a target
    assert json.loads((child / "acceptance.json").read_text())["tasks"]["chats-earlier"]["chats"] == 15
    row = json.loads((child / "held_out" / "chats.jsonl").read_text().splitlines()[0])
    assert row["packed"]["counted"]
    texts = {(text.task, text.learned_by): text for text in compare(whole, child).texts}
    assert texts["chats", "both"].tokens in (packed["counted"], packed["counted"] - 1)


def test_the_tokens_of_conversations_that_are_scored_are_the_answers(data: Path, whole: Path) -> None:
    file = data / "chats" / "test.jsonl"
    scored = score_target(find_target(str(whole)), files=[file], warn=pytest.fail)[str(file)]["tokens"]
    packed = RunFolder(whole).data()["tasks"]["chats"]["splits"]["test"]
    assert packed["counted"] - 1 <= scored <= packed["counted"] < packed["tokens"]


def test_an_export_has_the_template(whole: Path, tmp_path: Path) -> None:
    export_run(whole, tmp_path / "model", "0")
    kept = find_target(str(tmp_path / "model")).tokenizer().chat
    assert kept is not None
    assert "im_start" in kept.source
