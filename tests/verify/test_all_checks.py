"""All checks pass on the real network, and each way of breaking it is caught by the check that names it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_config
from trc2 import CortexNet
from trc2.model import thalamus
from trc2.model.critic import Appraisal, Critic
from trc2.model.hippocampus import Hippocampus, Retrieval
from trc2.nn.decoding import Decoding
from trc2.nn.segments import Segment
from trc2.system.plot_style import style
from trc2.verify import ModelUnderTest, Report, all_checks, coverage, run_checks
from trc2.verify.all_checks import CHECKS
from trc2.verify.check import Check
from trc2.verify.figure import as_table, draw, notes, summary

ROOT = Path(__file__).parents[2]


def build(cls: type[CortexNet] = CortexNet, **changes: object) -> CortexNet:
    return cls(tiny_config(**{"memory_slots": 64, "max_positions": 64, **changes}), torch.Generator().manual_seed(0))


def failures(report: Report) -> set[str]:
    return {f"{check.group} {check.name}" for check in report.failed}


@pytest.fixture(scope="module")
def whole_report() -> Report:
    return run_checks(build())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"thalamus": False},
        {"memory": False},
        {"replay": False},
        {"thalamus": False, "memory": False, "replay": False},
        {"num_columns": 1},
        {"replay_path": "cortex"},
        {"dropout": 0.1},
    ],
    ids=str,
)
def test_every_variant_of_the_network_passes(changes: dict[str, object], whole_report: Report) -> None:
    report = run_checks(build(**changes)) if changes else whole_report
    assert failures(report) == set()
    for switch, group in (("memory", "A1"), ("replay", "D")):
        applied = [check.passed for check in report.checks if check.group == group]
        expected = None if changes.get(switch) is False else True
        assert set(applied) == {expected}


# ------------------------------------------------------------------------------------------------- broken on purpose


class CommitsInForward(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        out = super().forward(x, targets, **options)
        if self.training and targets is not None:
            self.cortex.hippocampus.commit(list(self.pending))
        return out


class EvalCommits(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        if not self.training and self.pending:
            self.cortex.hippocampus.commit(list(self.pending))
        return super().forward(x, targets, **options)


class EvalResetsMemory(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        if not self.training:
            self.cortex.hippocampus.forget()
        return super().forward(x, targets, **options)


class EvalKeepsQueue(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        kept = list(self.pending)
        out = super().forward(x, targets, **options)
        if not self.training:
            self.pending.extend(kept)
        return out


class EvalInsertsIntoReplay(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        out = super().forward(x, targets, **options)
        if not self.training:
            self.replay.stage(x)
        return out


class FlushesEveryMicroStep(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        if self.training and targets is not None:
            self.flush_pending_write()
        return super().forward(x, targets, **options)


class SamplesAfterInsertion(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        if self.training and targets is not None:
            self.replay.stage(x)
            self.replay.commit(*self.replay.take_staged())
        return super().forward(x, targets, **options)


class ClairvoyantCritic(Critic):
    def forward(self, states: Tensor, valid: Tensor | None) -> Appraisal:
        out = super().forward(states, valid)
        return Appraisal(out.loss_td, out.loss_predictor, out.surprise.roll(-1, dims=1))


class ScoreSeesNextToken(CortexNet):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cortex.hippocampus.critic.__class__ = ClairvoyantCritic


class DecodesWithoutState(CortexNet):
    def decode(self, x: Tensor, decoding: Decoding, **options: Any) -> Tensor:
        return super().decode(x, self.start_decoding(), **options)


class ForgetsAParameter(CortexNet):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.spare = nn.Parameter(torch.zeros(3))


class NeedsContiguousTargets(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        logits, aux = super().forward(x, targets, **options)
        if targets is not None and not targets.is_contiguous():
            aux["loss"] = aux["loss"] + 1.0
        return logits, aux


class NanInTraining(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        logits, aux = super().forward(x, targets, **options)
        return (logits * float("nan") if self.training and targets is not None else logits), aux


class NanScores(CortexNet):
    def _queue(self, out: Any, *rest: Any) -> None:
        spoilt = dataclasses.replace(out.proposal, surprise=out.proposal.surprise * float("nan"))
        super()._queue(dataclasses.replace(out, proposal=spoilt), *rest)


class QueuesNothing(CortexNet):
    def _queue(self, out: Any, *rest: Any) -> None:
        super()._queue(dataclasses.replace(out, proposal=None), *rest)


class TrainingReadsPending(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        pending = len(self.pending) if self.training else 0
        logits, aux = super().forward(x, targets, **options)
        return logits + pending, aux


class ReplayLeaks(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        logits, aux = super().forward(x, targets, **options)
        if aux and float(aux["loss_replay"].detach()) > 0:
            logits = logits + logits[:, -1:]
        return logits, aux


class FlushLosesChunks(CortexNet):
    def flush_pending_write(self) -> Any:
        self.replay._staged = [tuple(part[:1] for part in self.replay.take_staged())]
        return super().flush_pending_write()


class FlushIgnoresThreshold(CortexNet):
    def flush_pending_write(self) -> Any:
        extra = [waiting.proposal.states[:1] for waiting in self.pending]
        report = super().flush_pending_write()
        self.cortex.hippocampus.write(torch.cat(extra))
        return report


class SlowHeadsStandStill(CortexNet):
    def update_slow_targets(self) -> None:
        self.clock.set(int(self.clock.step) + 1, 0)


class QueuesWithoutTargets(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        out = super().forward(x, targets, **options)
        if self.training and targets is None:
            self.pending.append("anything")
        return out


class EvalWithTargetsWrites(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        if not self.training and targets is not None:
            self.cortex.hippocampus.write(torch.ones(1, self.config.d_model, dtype=torch.float64))
        return super().forward(x, targets, **options)


class CutPathway(CortexNet):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        with torch.no_grad():
            self.cortex.feedback.to_thalamus.weight.zero_()


class IgnoresPadding(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        return super().forward(x, targets, **{**options, "valid": None})


class RecallSeesTheNextToken(CortexNet):
    def _reading_head(self, x: Tensor, valid: Tensor | None = None) -> Any:
        return super()._reading_head(torch.roll(x, -1, dims=1), valid)


class RecallWrites(CortexNet):
    def decode(self, x: Tensor, decoding: Decoding, **options: Any) -> Any:
        if self.recall is not None:
            self.replay.commit(x.new_zeros(1, self.replay.chunk_length).int())
        return super().decode(x, decoding, **options)


class CommitsChunksInForward(CortexNet):
    def forward(self, x: Tensor, targets: Tensor | None = None, **options: Any) -> Any:
        out = super().forward(x, targets, **options)
        if self.training and targets is not None:
            self.replay.commit(*self.replay.take_staged())
        return out


BROKEN = [
    (RecallSeesTheNextToken, {"F recall, eval", "F recall, decoding"}),
    (RecallWrites, {"F state after recall"}),
    (CommitsChunksInForward, {"F recall before flush"}),
    (IgnoresPadding, {"A padding, eval (empty)"}),
    (NanInTraining, {"A forward, train before flush (empty)"}),
    (NanScores, {"A1 write score, t (empty)"}),
    (QueuesNothing, {"A1 write score, t (empty)", "B micro-step queues writes"}),
    (TrainingReadsPending, {"B no pre-flush effect, train"}),
    (ReplayLeaks, {"A forward, train before flush (filled)"}),
    (FlushLosesChunks, {"D stores grow in training"}),
    (FlushIgnoresThreshold, {"B only survivors are written"}),
    (SlowHeadsStandStill, {"B slow heads follow"}),
    (QueuesWithoutTargets, {"B no targets, no writes"}),
    (EvalWithTargetsWrites, {"B eval does not commit"}),
    (CutPathway, {"E pathways are live"}),
    (CommitsInForward, {"B memory before flush", "B flush order under accumulation"}),
    (EvalCommits, {"B eval does not commit"}),
    (EvalResetsMemory, {"C memory count after eval"}),
    (EvalKeepsQueue, {"B eval clears the queue"}),
    (EvalInsertsIntoReplay, {"D stores rest in eval"}),
    (FlushesEveryMicroStep, {"B no write inside the step", "B one flush per step"}),
    (SamplesAfterInsertion, {"D replay before insertion"}),
    (ScoreSeesNextToken, {"A1 write score, t (empty)", "A1 write score, t (filled)"}),
    (DecodesWithoutState, {"A decoding with state (empty)", "A decoding with state (filled)"}),
    (ForgetsAParameter, {"E graph coverage (empty)"}),
    (NeedsContiguousTargets, {"E target layout"}),
]


def choose_groups(monkeypatch: pytest.MonkeyPatch, groups: set[str]) -> None:
    """Run these groups of checks only. The results of other groups on a broken network do not matter."""
    monkeypatch.setattr(all_checks, "CHECKS", [entry for entry in CHECKS if entry[0] in groups])


@pytest.mark.parametrize(("broken", "named"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_network_is_caught_by_the_check_that_names_it(
    broken: type[CortexNet], named: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_groups(monkeypatch, {name.split()[0] for name in named})
    assert named <= failures(run_checks(build(broken)))


def test_a_check_that_crashes_has_failed_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def falls_over(tested: ModelUnderTest) -> list[Check]:
        raise IndexError("out of reach")

    monkeypatch.setattr(all_checks, "CHECKS", (("A", falls_over), ("E", coverage.target_layout)))
    crashed, *others = run_checks(build()).checks
    assert (crashed.name, crashed.passed) == ("falls over", False)
    assert "IndexError out of reach" in crashed.note
    assert others
    assert all(check.passed for check in others)


def test_one_future_token_in_the_router_mean_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaky(z: Tensor, segment: Segment, before: Any = None) -> Tensor:
        following = torch.cat((z[:, 1:], torch.zeros_like(z[:, :1])), dim=1)
        count = torch.arange(z.shape[1], dtype=z.dtype)[None, :, None] + 1
        return (z.cumsum(1) - z + following) / count

    monkeypatch.setattr(thalamus, "past_mean", leaky)
    choose_groups(monkeypatch, {"A"})
    caught = failures(run_checks(build()))
    assert {
        "A forward, eval (empty)",
        "A gradient, eval (empty)",
        "A prefix, eval (empty)",
        "A forward, train before flush (empty)",
    } <= caught


def test_a_leak_through_memory_is_seen_only_with_a_filled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Hippocampus.retrieve

    def leaky(self: Hippocampus, hidden: Tensor) -> Retrieval | None:
        return plain(self, hidden.roll(-1, dims=0))

    monkeypatch.setattr(Hippocampus, "retrieve", leaky)
    choose_groups(monkeypatch, {"A"})
    caught = failures(run_checks(build()))
    assert "A forward, eval (filled)" in caught
    assert "A forward, eval (empty)" not in caught


# ------------------------------------------------------------------------------------------------------------ verdict


def test_a_check_keeps_its_bound() -> None:
    def verdict(measured: float | None, relation: str, bound: float) -> bool | None:
        return Check("A", "name", "claim", measured, relation, bound).passed

    assert verdict(1.0, "<=", 1.0) is True
    assert verdict(1.1, "<=", 1.0) is False
    assert verdict(0.0, ">", 0.0) is False
    assert verdict(0.0, "==", 0.0) is True
    assert verdict(float("nan"), "<=", 1.0) is False
    assert verdict(None, "<=", 1.0) is None


def test_the_readme_counts_the_checks_of_a_whole_network(whole_report: Report) -> None:
    (count,) = re.findall(r"`trc2 verify`: (\d+) checks", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(whole_report.checks) == int(count)


def test_checks_leave_the_model_untouched() -> None:
    net = build()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for _, check in CHECKS:
        check(ModelUnderTest(net))
        assert not net.pending
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_the_report_is_shown_as_table_figure_and_sentence(
    whole_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_groups(monkeypatch, {"B", "E"})
    good, bad = whole_report, run_checks(build(ForgetsAParameter))
    assert as_table(good, 80).row_count == as_table(good, 200).row_count == len(good.checks)
    assert "All" in summary(good)
    assert "fail: E graph coverage" in summary(bad)
    assert any("spare" in note for note in notes(bad))
    with style():
        assert len(draw(bad.to_json()).drawing.png()) > 10_000
    assert good.to_json()["passed"] is True
    assert bad.to_json()["passed"] is False
