"""A run that is also scored while it reads its replay stores: same training, same state, better where text repeats."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.conftest import tiny_config
from trc2 import CortexNet
from trc2.config import RunConfig
from trc2.evaluation.recall import reading_stores
from trc2.recall.counts import Counts
from trc2.recall.gate import DEFAULT_WEIGHTS
from trc2.replay.stores import ReplayStores, mark_unlabelled
from trc2.runs.folder import RunFolder
from trc2.runs.records import current, read_all_records
from trc2.training.resume import resume_run
from trc2.training.setup import start_run

CPU = torch.device("cpu")
QUIET = Console(quiet=True)


def evaluations(folder: Path) -> dict[int, dict[str, float]]:
    records = current(read_all_records(RunFolder(folder).metrics_file))
    return {record.step: record.metrics for record in records if record.kind == "eval"}


def test_training_is_the_same_and_scores_are_beside_those_of_the_network(
    tiny_run: Callable[..., RunConfig], tmp_path: Path
) -> None:
    folders = {}
    for recall in ("off", "boundaries"):
        folders[recall] = start_run(tiny_run(eval={"recall": recall}, output={"folder": tmp_path / recall}), QUIET)
    plain, reading = (evaluations(folder) for folder in folders.values())
    for step, metrics in plain.items():
        assert {name: value for name, value in reading[step].items() if "recall" not in name and "eff" not in name} == {
            name: value for name, value in metrics.items() if "eff" not in name
        }
    with_recall = [step for step, metrics in reading.items() if any("recall" in name for name in metrics)]
    assert with_recall == [6, 12], "at task boundaries"
    end = reading[12]
    for task in ("apples", "tools"):
        if f"eval/{task}/loss" in end:
            assert end[f"eval/{task}/recall_loss"] < end[f"eval/{task}/loss"], "six steps learn less than counts know"
            assert end[f"eval/{task}/recall_perplexity"] == pytest.approx(math.exp(end[f"eval/{task}/recall_loss"]))
    assert sum("recall_loss" in name for name in end) == 2
    first, second = (RunFolder(folder).model(print)[0].state_dict() for folder in folders.values())
    assert all(torch.equal(first[name], second[name]) for name in first)
    tests = [r.metrics for r in read_all_records(RunFolder(folders["boundaries"]).metrics_file) if r.kind == "test"]
    assert all(any("recall_loss" in name for name in metrics) for metrics in tests)


def test_a_resumed_run_has_the_same_scores(tiny_run: Callable[..., RunConfig], tmp_path: Path) -> None:
    whole = start_run(tiny_run(eval={"recall": "always"}, output={"folder": tmp_path / "whole"}), QUIET)
    config = tiny_run(eval={"recall": "always"}, output={"folder": tmp_path / "resumed"})
    begun = start_run(config, QUIET)
    run = RunFolder(begun)
    for checkpoint in run.checkpoints.iterdir():  # as if it had been killed after step 4
        if not checkpoint.name.endswith("4"):
            for file in checkpoint.iterdir():
                file.unlink()
            checkpoint.rmdir()
    resume_run(begun, [], QUIET)
    expected, found = evaluations(whole), evaluations(begun)
    assert found.keys() == expected.keys()
    for step, metrics in expected.items():
        names = [name for name in metrics if "recall" in name]
        assert bool(names) == (step > 0)
        assert {name: found[step][name] for name in names} == {name: metrics[name] for name in names}


def test_reading_ends_after_an_error_and_empty_stores_are_not_read() -> None:
    net = CortexNet(tiny_config()).eval()
    with reading_stores(net, (), CPU) as has_text:
        assert not has_text
    assert net.replay is not None
    net.replay.commit(torch.randint(29, (4, 5)).int())
    with pytest.raises(ZeroDivisionError), reading_stores(net, (), CPU) as has_text:  # noqa: PT012
        assert has_text
        assert net.recall is not None
        assert net.recall.gate.weights == DEFAULT_WEIGHTS, "without control windows there is nothing to fit"
        _ = 1 / 0
    assert net.recall is None


def test_stored_chunks_are_counted_once_and_without_their_marks() -> None:
    stores = ReplayStores(4, 4, 3)
    rows = torch.tensor([[1, 2, 3], [4, 5, 6]])
    stores.commit(mark_unlabelled(rows, torch.tensor([[False, True, False], [False, False, False]])).int())
    assert sorted(stores.stored().tolist()) == rows.tolist(), "both stores hold both chunks"
    counts = Counts.of(list(stores.stored().numpy()), 9, count_starts=False)
    assert counts.follow(rows.numpy())[0, 1, 2] >= 0, "a marked token is text like any other"
