"""Retention against the stored fraction, and the table of records, on invented runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from studies.records import counts_loss, entries, kept_bytes, records_page
from studies.store import Store, main, retention_table, smallest_words, stored_loss
from tests.report.invented import invent_run, rewrite
from trc2.config import load_recipe
from trc2.errors import UserError
from trc2.report.run import read_run
from trc2.report.runs import read_runs

BACKBONE = ["model.thalamus=false", "model.memory=false"]
SIZES = (145, 1450, 14500)  # chunks: tenfold each


def forgets(chunks: int, is_full: bool) -> float:
    """0.3 nats less for every tenfold store. TRC² is 0.1 better."""
    return 1.0 - 0.3 * math.log10(chunks / SIZES[0]) - (0.1 if is_full else 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    for chunks in SIZES:
        for name, settings in (("full", []), ("backbone", BACKBONE)):
            for seed in (0, 1):
                own = [f"model.replay_long_chunks={chunks}", f"train.seed={seed}"]
                rise = forgets(chunks, name == "full") + 0.001 * seed * (1 if name == "full" else 2)
                invent_run(root / f"{name}_{chunks}_s{seed}", "lab_trc2", [*settings, *own], forgets=rise, noise=0.0)
    return root


def test_the_slope_per_decade_and_the_difference_at_the_smallest_store(folder: Path) -> None:
    store = Store(read_runs([folder]))
    assert [series.title for series in store.series] == ["TRC²", "TRC² backbone + controlled replay"]
    model = load_recipe("lab_trc2").model
    tokens = store.stream_tokens
    expected = [100 * chunks * model.replay_chunk_length / tokens for chunks in SIZES]
    assert list(store.series[0].variants) == pytest.approx(expected)
    slopes = store.slopes(store.series[0], store.table.final_loss)
    assert list(slopes) == [0, 1]
    assert slopes[0] == pytest.approx(-0.3 * 2 / 3, abs=0.01)  # two of three tasks are past
    found = store.smallest()
    assert found is not None
    assert found[2] == pytest.approx(expected[0])
    assert "n = 2 seeds" in smallest_words(store)
    assert len(retention_table(store).index) == 6


@pytest.mark.slow
def test_the_page_the_tables_and_the_figure_are_written(folder: Path, tmp_path: Path) -> None:
    assert main([str(folder), "--out", str(tmp_path)]) == 0
    assert {"README.md", "retention.csv", "slopes.csv", "retention.png"} <= {path.name for path in tmp_path.iterdir()}


def test_one_size_of_the_store_is_refused_with_the_setting_to_vary(folder: Path) -> None:
    runs = sorted(folder.glob(f"*_{SIZES[0]}_s*"))
    with pytest.raises(UserError, match=r"model\.replay_long_chunks"):
        _ = Store(read_runs(runs)).series


def test_the_loss_on_stored_text_is_that_of_the_last_replayed_chunks(tmp_path: Path) -> None:
    run = invent_run(tmp_path / "run", "lab_trc2")

    def change(metrics: dict[str, float], step: int) -> None:
        metrics["train/loss_replay"] = 0.0 if step < 100 else 7.0 if step < 2000 else 3.0

    rewrite(run, change, "train")
    last = read_run(run)
    late = [value for value in last.series("train", "train/loss_replay")[1] if value == 3.0]
    assert stored_loss(last) == (3.0 if len(late) > 10 else 7.0)


# ----------------------------------------------------------------------------------------------------------- records


def test_kept_bytes_are_chunks_of_two_byte_tokens_and_the_memory() -> None:
    config = load_recipe("lab_trc2")
    model = config.model
    chunks = (model.replay_long_chunks + model.replay_recent_chunks) * model.replay_chunk_length
    assert kept_bytes(config) == 2 * chunks + 4 * 1024 * (32 + 128)
    assert kept_bytes(load_recipe("lab_trc2", ["model.memory=false"])) == 2 * chunks
    assert kept_bytes(load_recipe("lab_trc2", ["model.memory=false", "model.replay=false"])) == 0


def test_records_begin_with_counts_and_the_bound_and_keep_the_budgets(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    for seed in (0, 1):
        invent_run(lab / f"small_s{seed}", "lab_trc2", [f"train.seed={seed}"], forgets=0.2)
        invent_run(lab / f"large_s{seed}", "lab_trc2", ["model.replay_long_chunks=60000", f"train.seed={seed}"])
    invent_run(lab / "repeat", "lab_trc2", ["model.replay_seed=1000"], forgets=0.3)
    invent_run(lab / "joint", "lab_trc2", ["stream.mode=joint", *BACKBONE, "model.replay=false"], forgets=0.0)
    for folder in lab.iterdir():
        rewrite(folder, lambda metrics, _: metrics.update({"efficiency/training_flops_per_token": 2e7}), "end")
    reading = {f"eval/{task}/recall_loss": 1.0 for task in ("c4", "wikitext", "gsm8k")}
    for seed in (0, 1):
        rewrite(lab / f"large_s{seed}", lambda metrics, _: metrics.update(reading))
    stream = {"bigram": math.exp(5.0), "trigram": math.exp(4.5)}
    counts = {"tasks": {task: {"stream": stream} for task in ("c4", "wikitext", "gsm8k")}}
    (lab / "counts.json").write_text(json.dumps(counts))
    assert counts_loss(lab / "counts.json") == ("trigram", pytest.approx(4.5))
    found = entries(read_run(path) for path in lab.iterdir() if path.is_dir())
    assert sorted((len(entry.losses), len(entry.folders)) for entry in found) == [(2, 2), (2, 2), (2, 3)]
    assert (found[0].title.split(", ")[-1], found[0].losses) == ("reading its store", [1.0, 1.0])
    page = records_page([lab], tmp_path)
    small, large = (part.splitlines() for part in page.split("\n## ")[1:])
    rows = [[line for line in part if line.startswith("| ")][1:] for part in (small, large)]
    assert [line.split(" |")[0].split("| ")[1][:6] for line in rows[0]] == ["counts", "TRC² b", "TRC²"]
    assert len(rows[1]) == 5
    assert "(<lab/joint>)" in rows[0][1]
