"""Inside a run while it learns: auxiliary losses, what the hippocampus writes, how much is replayed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from trc2.report.finished import FinishedRun
from trc2.report.plots.canvas import Picture, Sheet, grid_of, hide_rest
from trc2.report.plots.curves import band_words, draw_arms
from trc2.report.plots.ticks import linear_ticks, log_ticks, quiet_axis, should_be_log
from trc2.report.scope import LeftOut, Scope
from trc2.report.signals import LOSSES, STRENGTHS, WRITES, Signal, train_curve, varies, worth_showing


def auxiliary_losses(scope: Scope) -> Picture:
    """The losses beside that of language, over the stream."""
    return _draw(scope, "auxiliary_losses", LOSSES, "Auxiliary losses of TRC²")


def write_dynamics(scope: Scope) -> Picture:
    """What surprises the hippocampus and how much of it is written."""
    return _draw(scope, "hippocampus", WRITES, "Hippocampal write dynamics of TRC²")


def steered_replay(scope: Scope) -> Picture:
    """How much is replayed over the stream, where it is steered: by the paper's weight, or as a share of the tokens."""
    steered = {
        path: [arm for arm in scope.competitors if any(_moves(train_curve(run, path)) for run in scope.runs(arm))]
        for path, _ in STRENGTHS
    }
    shown = [(path, words) for path, words in STRENGTHS if steered[path]]
    if not shown:
        raise LeftOut("needs a run whose replay is steered")
    sheet = Sheet(scope, 1, len(shown), size=(5.2 if len(shown) == 1 else 4.4, 2.8))
    for axes, (path, words) in zip(sheet.panels, shown, strict=True):
        draw_arms(sheet, axes, partial(train_curve, path=path), arms=steered[path], boundary_marks=False)
        axes.set_title(words, pad=12)
        axes.set_ylim(bottom=0.0)
        linear_ticks(axes.yaxis)
    drawn = list({arm.title: arm for arms in steered.values() for arm in arms}.values())
    words = f"Only arms in which it changes, means over seeds.{band_words(scope, drawn)}"
    return sheet.finish("steered_replay", f"Replay as it was steered. {words}", f"{scope.data_words(drawn)}. {words}")


def _moves(curve: Sequence[tuple[int, float]]) -> bool:
    values = [value for _, value in curve]
    return bool(values) and max(values) > min(values)


def _logged(run: FinishedRun, path: str) -> list[tuple[int, float]]:
    """A signal of the training records; the replay loss without the steps that had nothing to replay, where it is 0."""
    curve = train_curve(run, path)
    return [(step, value) for step, value in curve if value != 0] if path == "train/loss_replay" else curve


def _draw(scope: Scope, name: str, signals: tuple[Signal, ...], title: str) -> Picture:
    arms = [arm for arm in scope.competitors if arm.family.name == "trc2"]
    runs = {arm.title: scope.runs(arm) for arm in arms}
    everyone = [run for here in runs.values() for run in here]
    shown, said = worth_showing(everyone, signals)
    if not any(varies(train_curve(run, "hippocampus/threshold")) for run in everyone) or not shown:
        raise LeftOut("needs a TRC² with a memory")
    rows, columns = grid_of(len(shown), 2 if len(shown) == 4 else 3)
    sheet = Sheet(scope, rows, columns, size=(3.6, 2.4))
    sigma = max(1.0, 0.01 * max(len(train_curve(run, path)) for run in everyone for path, _ in shown))
    drawn = []
    for axes, (path, words) in zip(sheet.panels, shown, strict=False):
        here = [arm for arm in arms if any(varies(train_curve(run, path)) for run in runs[arm.title])]
        drawn += [arm for arm in here if arm not in drawn]
        draw_arms(sheet, axes, partial(_logged, path=path), sigma=sigma, arms=here, boundary_marks=False)
        axes.set_title(words, pad=12)
        values = sorted(v for arm in here for run in runs[arm.title] for _, v in _logged(run, path))
        is_loss = path.startswith("train/")
        if is_loss:
            axes.set_ylabel("loss (nats)" if path == "train/loss_replay" else "loss")
        if is_loss and should_be_log(values):
            settled = values[len(values) // 50 : -max(1, len(values) // 200)] or values
            axes.set_ylim(settled[0] / 1.3, settled[-1] * 1.5)
            log_ticks(axes)
        else:
            quiet_axis(axes, values)
    hide_rest(sheet.panels, len(shown))
    more = band_words(scope, drawn) + said
    words = f"Gaussian smoothed over logged steps (σ = {sigma:.2g}), unsmoothed pale behind.{more}"
    return sheet.finish(name, f"{title}. {words}", f"{scope.data_words(drawn)}. {words}")
