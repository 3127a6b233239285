"""Evaluation between steps, and the replay controller, which decides from it how much is replayed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig, RunConfig
from trc2.distributed.group import Ranks
from trc2.errors import UserError
from trc2.evaluation.recall import reading_stores
from trc2.evaluation.tasks import control_perplexity, score_lm_tasks, score_task
from trc2.metrics.forgetting import ScoreTable, metrics_of, summarise
from trc2.metrics.lm_eval import Score, with_forgetting
from trc2.nn.trunk import WriteReport
from trc2.replay.controller import ControllerState, base_settings, steer
from trc2.runs.equal_cost import training_flops
from trc2.runs.records import Kind, Record, score_table, scores_by_task
from trc2.runs.schedule import TaskSchedule
from trc2.system.failpoints import failpoint
from trc2.system.precision import peak_matmul_flops, peak_memory_gb
from trc2.training.data import StreamData
from trc2.training.guards import no_side_effects
from trc2.training.observers import PEAK_MEMORY, Recorder
from trc2.training.state import RunState

RECALLED = ("loss", "perplexity")  # what is also scored while the model reads its replay stores


def add_up_losses(ranks: Ranks, micro_losses: list[dict[str, float]], norm: float) -> tuple[dict[str, float], bool]:
    """The losses of a step over the micro-batches of all ranks, and whether they and the gradient norm are finite.

    `micro_losses` are of this rank. The losses are added in the order of the micro-batches, whichever rank ran them.
    """
    names = list(micro_losses[0])
    if different := sorted(name for losses in micro_losses for name in {*names} ^ {*losses}):
        raise UserError(
            f"Only some micro-batches of a step have a '{different[0]}': let the strategy return this loss for all of "
            "them, 0 where there is none."
        )
    rows = ranks.gather_rows([[*losses.values(), norm] for losses in micro_losses], len(names) + 1)
    losses = dict.fromkeys(names, 0.0)
    for row in rows:
        for name, value in zip(names, row, strict=False):
            losses[name] += value
    return losses, all(math.isfinite(value) for value in (*losses.values(), *(row[-1] for row in rows)))


def dynamics(model: Backbone, writes: WriteReport | None) -> dict[str, float]:
    """The strength of replay, and what the episodic memory wrote."""
    metrics = {}
    if model.replay is not None and model.replay.share is not None:
        metrics["replay/share"] = float(model.replay.share)
    elif model.replay is not None:
        metrics["replay/coefficient"] = float(model.replay.coefficient)
    if writes is not None and model.has_memory:
        metrics |= {f"hippocampus/{name}": float(value) for name, value in asdict(writes).items()}
        metrics["hippocampus/keep_fraction"] = writes.keep_fraction
        metrics["hippocampus/raw_fraction"] = writes.raw_fraction
    return metrics


class Evaluator:
    """Scores the model between steps and records the scores. Only `update_replay` changes later training."""

    def __init__(
        self, config: RunConfig, schedule: TaskSchedule, stream_data: StreamData, state: RunState, recorder: Recorder
    ) -> None:
        self.config, self.schedule, self.stream_data = config, schedule, stream_data
        self.state, self.recorder = state, recorder
        self._tables: list[ScoreTable] = []
        self._num_seen = -1  # evaluations that are in the tables

    @contextmanager
    def _evaluation_weights(self) -> Iterator[None]:
        """Evaluate with the strategy's weights, and check that nothing changes if the config asks for that."""
        state = self.state
        is_checked = self.config.eval.check_no_side_effects
        with no_side_effects(is_checked, state.model, state.optimizer), state.strategy.evaluation_weights():
            yield

    def _scores(self, names: Iterable[str], split: str, config: EvalConfig) -> dict[str, float]:
        """The metrics of a split of these tasks, by path."""
        metrics: dict[str, float] = {}
        data, state = self.stream_data, self.state
        for name in names:
            scores = score_task(state.model, data.tasks[name], split, config, data.tokenizer, state.device)
            prefix = "eval" if split == "validation" else split
            metrics |= {f"{prefix}/{name}/{key}": value for key, value in scores.items()}
        return metrics

    def _recall_scores(self, names: Iterable[str], split: str) -> dict[str, float]:
        """Loss and perplexity of these tasks if the model reads its replay stores, where they hold anything."""
        data, state = self.stream_data, self.state
        config = self.config.eval.replace(text_sequences=0)
        seen = self.schedule.seen(state.progress.step)
        control = (batch for name in seen for batch in data.tasks[name].control_batches(config.batch_size))
        with reading_stores(state.model, control, state.device) as has_text:
            scores = self._scores(names, split, config) if has_text else {}
        chosen = {path.rpartition("/"): value for path, value in scores.items()}
        return {f"{task}/recall_{key}": value for (task, _, key), value in chosen.items() if key in RECALLED}

    def evaluate(self, names: list[str]) -> None:
        """Score tasks on their validation splits and derive their forgetting."""
        failpoint("evaluation")
        state, step, config = self.state, self.state.progress.step, self.config.eval
        if config.text_metrics_at == "boundaries" and step > 0 and not self.schedule.is_boundary(step):
            config = config.replace(text_sequences=0)
        lm_scores: list[Score] = []
        with self._evaluation_weights():
            if step == 0 or self.schedule.is_boundary(step):
                lm_scores = score_lm_tasks(state.model, self.stream_data.tokenizer, config)
            metrics = self._scores(names, "validation", config)
            if config.recall == "always" or (config.recall == "boundaries" and self.schedule.is_boundary(step)):
                metrics |= self._recall_scores(names, "validation")
        for score in lm_scores:
            metrics |= with_forgetting(score, [record.metrics for record in self.recorder.evaluations])
        metrics[PEAK_MEMORY] = peak_memory_gb(state.device)  # at every evaluation: a killed process writes no `end`
        record = self.record("eval", metrics)
        for table in self._tables_with(record):
            if step > 0 and table.has(step, names[0]):
                record.metrics.update(summarise(table, step))
        self.recorder.emit(record)

    def _tables_with(self, record: Record) -> list[ScoreTable]:
        """The scores so far and those of this evaluation. The tables are built again only after a resume."""
        earlier, metrics = self.recorder.evaluations, metrics_of(self.config.eval.metrics).values()
        if len(earlier) != self._num_seen:
            self._tables = [score_table(earlier, metric, self.schedule.spans) for metric in metrics]
        for table in self._tables:
            if row := scores_by_task(record, table.metric):
                table.add(record.step, row)
        self._num_seen = len(earlier) + 1
        return self._tables

    def remember_reference(self) -> None:
        """P_post of the task that just ended, on its control subset."""
        failpoint("boundary")
        name = self.current_task
        value = self.control_perplexities([name])[name]
        self.state.control_post[name] = value
        self.recorder.emit(self.record("boundary", {f"control/{name}/perplexity": value}))

    def update_replay(self) -> None:
        """The replay controller, once some task is past."""
        config, state, progress = self.config.control, self.state, self.state.progress
        past = self.schedule.past(progress.step)
        if config.mode != "closed_loop" or state.model.replay is None or not past:
            return
        failpoint("controller")
        current = self.control_perplexities(past)
        before = ControllerState(progress.gap_average, progress.integral)
        after, trace = steer(config, base_settings(self.config.model), before, current, state.control_post)
        progress.gap_average, progress.integral = after.gap_average, after.integral
        state.apply(trace.settings)
        measured = {f"control/{name}/perplexity": value for name, value in current.items()}
        self.recorder.emit(self.record("control", trace.metrics() | measured))

    def control_perplexities(self, names: list[str]) -> dict[str, float]:
        """The input of the replay controller. A perplexity that is not finite must not steer it."""
        state, rows, tasks = self.state, self.config.eval.batch_size, self.stream_data.tasks
        with self._evaluation_weights():
            values = {name: control_perplexity(state.model, tasks[name], rows, state.device) for name in names}
        for name, value in values.items():
            if not math.isfinite(value):
                raise UserError(
                    f"The control perplexity of task '{name}' is {value} at step {state.progress.step}: the model is "
                    "broken, so lower train.learning_rate and start again."
                )
        return values

    def finish(self) -> None:
        """Score the test splits, once, and record the cost of the run."""
        failpoint("end")
        config, state = self.config, self.state
        if config.eval.test:
            names = [name for name, data in self.stream_data.tasks.items() if data.task.splits["test"].tokens > 1]
            with state.strategy.evaluation_weights():
                metrics = self._scores(names, "test", config.eval)
                if config.eval.recall != "off":
                    metrics |= self._recall_scores(names, "test")
                self.recorder.emit(self.record("test", metrics))
        self.recorder.emit(self.record("end", self._cost()))

    def _cost(self) -> dict[str, float]:
        """The run's totals over all of its processes. GB·h is peak memory times wall time, per device.

        `tokens_per_second` is the mean over all steps, `…_last` is of the last step, as printed in the paper.
        """
        state, train, seconds = self.state, self.config.train, self.recorder.seconds
        train_seconds = state.progress.train_seconds
        speed = state.progress.step * train.tokens_per_step / max(train_seconds, 1e-9)
        flops = training_flops(self.config, train, state.model.num_events) / (train.batch_size * train.sequence_length)
        own = (max(peak_memory_gb(state.device), self.recorder.peak_memory_gb), peak_matmul_flops(state.device))
        memories, peaks = zip(*state.ranks.gather_rows([own], 2), strict=True)
        return {
            "efficiency/tokens_per_second": speed,
            "efficiency/tokens_per_second_last": self.recorder.last_speed,
            PEAK_MEMORY: max(memories),
            "efficiency/gb_hours": max(memories) * seconds / 3600,
            "efficiency/training_flops_per_token": flops,
            "efficiency/matmul_flops": sum(peaks),
            "efficiency/utilisation": speed * flops / sum(peaks),
            "efficiency/evaluation_share": max(0.0, 1.0 - train_seconds / max(seconds, 1e-9)),
        }

    @property
    def current_task(self) -> str:
        """The task trained last, at step 0 the one that comes first."""
        return self.schedule.at(max(0, self.state.progress.step - 1)).task

    def record(self, kind: Kind, metrics: dict[str, float]) -> Record:
        return Record(kind, self.state.progress.step, self.current_task, metrics, self.recorder.seconds)
