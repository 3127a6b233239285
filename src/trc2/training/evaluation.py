"""What is measured at step boundaries, and the one decision that follows from it: how much is replayed."""

from __future__ import annotations

import math
from dataclasses import asdict

from trc2.backbones.shell import Backbone
from trc2.config import RunConfig
from trc2.distributed.group import Ranks
from trc2.errors import UserError
from trc2.evaluation.tasks import control_perplexity, score_lm_tasks, score_task
from trc2.metrics.forgetting import ScoreTable, metrics_of, summarise
from trc2.metrics.lm_eval import Score, with_forgetting
from trc2.nn.trunk import WriteReport
from trc2.replay.controller import ControllerState, base_settings, steer
from trc2.runs.records import Kind, Record, score_table, scores_by_task
from trc2.runs.schedule import TaskSchedule
from trc2.system.failpoints import failpoint
from trc2.training.data import StreamData
from trc2.training.efficiency import (
    PEAK_MEMORY,
    efficiency,
    peak_matmul_flops,
    peak_memory_gb,
    training_flops_per_token,
)
from trc2.training.guards import no_side_effects
from trc2.training.observers import Recorder
from trc2.training.state import RunState


def add_up_losses(ranks: Ranks, told: list[dict[str, float]], norm: float) -> tuple[dict[str, float], bool]:
    """A step's losses over the micro-batches of all ranks, and the one decision whether they and the norm are finite.

    `told` are this rank's micro-batches; all are added in their order, whoever ran them.
    """
    names = list(told[0])
    if different := [name for losses in told for name in names + list(losses) if (name in losses) != (name in names)]:
        raise UserError(
            f"Only some micro-batches of a step have a '{different[0]}': let the strategy return this loss for all of "
            "them, 0 where there is none."
        )
    rows = ranks.gather_rows([[*losses.values(), norm] for losses in told], len(names) + 1)
    losses = dict.fromkeys(names, 0.0)
    for row in rows:
        for name, value in zip(names, row, strict=False):
            losses[name] += value
    return losses, all(math.isfinite(value) for value in (*losses.values(), *(row[-1] for row in rows)))


def dynamics(model: Backbone, writes: WriteReport | None) -> dict[str, float]:
    """How strongly is replayed, and what the memory did."""
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
    """Scores the model between steps and records what was found. Only `update_replay` changes what is learnt later."""

    def __init__(
        self, config: RunConfig, schedule: TaskSchedule, stream_data: StreamData, state: RunState, recorder: Recorder
    ) -> None:
        self.config, self.schedule, self.stream_data = config, schedule, stream_data
        self.state, self.recorder = state, recorder
        self._tables: list[ScoreTable] = []
        self._num_seen = -1  # evaluations that are in the tables

    def evaluate(self, names: list[str]) -> None:
        """Score tasks on their validation splits and derive what was forgotten."""
        failpoint("evaluation")
        state, step, config = self.state, self.state.progress.step, self.config.eval
        if config.text_metrics_at == "boundaries" and step > 0 and not self.schedule.is_boundary(step):
            config = config.replace(text_sequences=0)
        metrics: dict[str, float] = {}
        lm_scores: list[Score] = []
        with (
            no_side_effects(config.check_no_side_effects, state.model, state.optimizer),
            state.strategy.evaluation_weights(),
        ):
            if step == 0 or self.schedule.is_boundary(step):
                lm_scores = score_lm_tasks(state.model, self.stream_data.tokenizer, config)
            for name in names:
                scores = score_task(
                    state.model,
                    self.stream_data.tasks[name],
                    "validation",
                    config,
                    self.stream_data.tokenizer,
                    state.device,
                )
                metrics |= {f"eval/{name}/{key}": value for key, value in scores.items()}
        for score in lm_scores:
            metrics |= with_forgetting(score, [record.metrics for record in self.recorder.evaluations])
        metrics[PEAK_MEMORY] = peak_memory_gb(state.device)  # at every evaluation: a killed process writes no `end`
        record = self.record("eval", metrics)
        for table in self._tables_with(record):
            if step > 0 and table.has(step, names[0]):
                record.metrics.update(summarise(table, step))
        self.recorder.emit(record)

    def _tables_with(self, record: Record) -> list[ScoreTable]:
        """The scores so far and those of this evaluation; made anew only when the run has gone back."""
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
        """What the replay controller looks at; a model whose perplexity is no number must not steer anything."""
        state, rows = self.state, self.config.eval.batch_size
        with (
            no_side_effects(self.config.eval.check_no_side_effects, state.model, state.optimizer),
            state.strategy.evaluation_weights(),
        ):
            found = {
                name: control_perplexity(state.model, self.stream_data.tasks[name], rows, state.device)
                for name in names
            }
        for name, value in found.items():
            if not math.isfinite(value):
                raise UserError(
                    f"The control perplexity of task '{name}' is {value} at step {state.progress.step}: the model is "
                    "broken; lower train.learning_rate and start again."
                )
        return found

    def finish(self) -> None:
        """Test splits, once, and what the run cost."""
        failpoint("end")
        config, state = self.config, self.state
        metrics: dict[str, float] = {}
        if config.eval.test:
            with state.strategy.evaluation_weights():
                for name, data in self.stream_data.tasks.items():
                    if data.task.splits["test"].tokens > 1:
                        scores = score_task(
                            state.model, data, "test", config.eval, self.stream_data.tokenizer, state.device
                        )
                        metrics |= {f"test/{name}/{key}": value for key, value in scores.items()}
            self.recorder.emit(self.record("test", metrics))
        per_token = training_flops_per_token(config, state.model.num_events, config.control.mode != "off")
        tokens = state.progress.step * config.train.tokens_per_step
        own = (max(peak_memory_gb(state.device), self.recorder.peak_memory_gb), peak_matmul_flops(state.device))
        memories, peaks = zip(*state.ranks.gather_rows([own], 2), strict=True)
        cost = efficiency(
            tokens,
            state.progress.train_seconds,
            self.recorder.seconds,
            last_speed=self.recorder.last_speed,
            memory_gb=max(memories),
            flops_per_token=per_token,
            peak_flops=sum(peaks),
        )
        self.recorder.emit(self.record("end", cost))

    @property
    def current_task(self) -> str:
        """The task trained last, at step 0 the one that comes first."""
        return self.schedule.at(max(0, self.state.progress.step - 1)).task

    def record(self, kind: Kind, metrics: dict[str, float]) -> Record:
        return Record(kind, self.state.progress.step, self.current_task, metrics, self.recorder.seconds)
