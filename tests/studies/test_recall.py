"""What stored text adds to a finished run: the mixture by hand, and stores of the declared sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from studies.recall import CHUNK, FRACTIONS, WAYS, decision, main, stored_chunks, without_lengths
from trc2.recall.gate import FEATURES, Examples, Gate
from trc2.runs.records import Record


def test_stores_are_nested_samples_of_whole_chunks() -> None:
    rows = np.arange(40 * 129).reshape(40, 129)
    tokens = 40 * 128
    small, large = (stored_chunks(rows, fraction, tokens, seed=0) for fraction in (0.1, 0.5))
    assert small.shape == (8, CHUNK)
    assert large.shape == (40, CHUNK)
    assert np.array_equal(large[:8], small)
    assert np.array_equal(small, small[:, :1] + np.arange(CHUNK))
    assert stored_chunks(rows, 1.0, tokens, seed=0) is rows


def test_a_gate_without_lengths_sees_that_a_context_was_found_and_not_which() -> None:
    features = torch.rand(5, len(FEATURES), dtype=torch.float64)
    blind = without_lengths(Examples(features, features[:, 0], features[:, 1], 9))
    assert torch.equal(blind.features[:, :4], torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64).expand(5, 4))
    assert torch.equal(blind.features[:, 4:], features[:, 4:])


@pytest.mark.parametrize("log_odds", [-50.0, 50.0])
def test_a_closed_gate_is_the_network_and_an_open_one_the_counts(log_odds: float) -> None:
    features = torch.zeros(3, len(FEATURES), dtype=torch.float64)
    features[:, 0] = 1.0
    network, stored = torch.tensor([-1.0, -2.0, -3.0]).double(), torch.tensor([-0.5, -0.5, -9.0]).double()
    gate = Gate((log_odds, *(0.0,) * (len(FEATURES) - 1)), "by hand")
    expected = 0.0 if log_odds < 0 else float((network - stored).sum() / 4)
    assert Examples(features, network, stored, 4).rise_with(gate) == pytest.approx(expected)


def test_every_store_of_a_run_is_scored_in_every_way(trained: Path, tmp_path: Path) -> None:
    assert main([str(trained), "--out", str(tmp_path / "recall")]) == 0
    run = json.loads((tmp_path / "recall" / "recall.json").read_text())["runs"][trained.name]
    assert [store["fraction"] for store in run["stores"]] == list(FRACTIONS)
    everything = run["stores"][-1]["losses"]
    assert set(everything) == set(WAYS)
    alone = [store["losses"]["network"] for store in run["stores"]]
    assert all(losses == alone[0] for losses in alone), "the network does not depend on the store"
    # The little vocabulary of the test makes counts of all text better than a network of a few steps.
    assert sum(everything["both"].values()) < sum(everything["network"].values())
    assert trained.name in (tmp_path / "recall" / "README.md").read_text()


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "error:" in capsys.readouterr().err


def write_run(
    folder: Path, losses: dict[str, float], with_stores: dict[str, float] | None = None, *, has_ended: bool = True
) -> None:
    """The metrics log of a run that has only its last evaluation."""
    folder.mkdir(parents=True)
    metrics = {f"eval/{task}/loss": value for task, value in losses.items()}
    metrics |= {f"eval/{task}/recall_loss": value for task, value in (with_stores or {}).items()}
    records = [Record("eval", 9, "b", metrics=metrics), *([Record("end", 9, "b")] if has_ended else [])]
    (folder / "metrics.jsonl").write_text("".join(record.to_json() + "\n" for record in records))


@pytest.mark.parametrize(
    ("gains", "word"),
    [
        ((0.2, 0.2, 0.2), "Reached"),
        ((0.0, 0.02, 0.4), "Missed"),  # one seed decides the mean
        ((0.2, 0.2), "Undecided"),
        ((0.07, 0.06, 0.08), "Missed"),
        ((0.0,) * 3, "Not worth"),
    ],
)
def test_the_rule_is_applied_to_the_mean_over_tasks_and_seeds(
    gains: tuple[float, ...], word: str, tmp_path: Path
) -> None:
    for seed, gain in enumerate(gains):
        write_run(tmp_path / f"lab_large_share+s{seed}", {"a": 4.0, "b": 3.0}, {"a": 4.0 - 2 * gain, "b": 3.0})
    write_run(tmp_path / "lab_trc2+joint+s0", {"a": 3.5, "b": 2.5})
    said = decision(tmp_path)
    assert said.startswith(word)
    assert "| network alone − joint training (1 seeds) | +0.500 |" in said
    assert f"| gain ÷ this distance | {sum(gains) / len(gains) / 0.5:.2f} |" in said


def test_a_task_that_gets_worse_misses_the_rule(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"lab_large_share+s{seed}", {"a": 4.0, "b": 3.0}, {"a": 3.0, "b": 3.1})
    assert "worse: b" in decision(tmp_path).splitlines()[0]


def test_only_finished_runs_of_the_recipe_itself_decide(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"lab_large_share+s{seed}", {"a": 4.0}, {"a": 3.8})
    before = decision(tmp_path)
    write_run(tmp_path / "lab_large_share+s2", {"a": 9.0}, {"a": 9.5}, has_ended=False)
    write_run(tmp_path / "lab_large_share+store20+s0", {"a": 4.0}, {"a": 3.0})
    write_run(tmp_path / "lab_trc2+joint+s0", {"a": 8.0}, has_ended=False)
    (tmp_path / "lab_large_share+s3").mkdir()
    assert before.startswith("Undecided: 2 of 3 seeds.")
    assert decision(tmp_path) == before


def test_runs_with_a_smaller_share_of_replay_are_shown_and_do_not_decide(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"lab_large_share+s{seed}", {"a": 4.0, "b": 3.0}, {"a": 3.8, "b": 3.0})
    write_run(tmp_path / "lab_large_share+share11+s0", {"a": 5.0, "b": 4.0}, {"a": 4.4, "b": 4.2})
    said = decision(tmp_path)
    assert said.startswith("Undecided: 2 of 3 seeds.")
    assert said.splitlines()[-2:] == ["| 11 % | 1 | 4.500 | 4.300 | -0.200 |", "| 44 % | 2 | 3.500 | 3.400 | -0.100 |"]


def test_the_rule_is_applied_without_scoring_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        write_run(tmp_path / f"lab_large_share+s{seed}", {"a": 4.0}, {"a": 3.8})
    assert main(["--decide", str(tmp_path), "--out", str(tmp_path / "new")]) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["decision.md"]
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "new")])
    assert "name runs to score" in capsys.readouterr().err
