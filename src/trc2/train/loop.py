"""The training loop. What changes learning stands here, in order; what only watches is an observer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import torch

from trc2.baselines import build_model
from trc2.config import RunConfig
from trc2.errors import UserError, brief
from trc2.failpoint import failpoint
from trc2.metrics.forgetting import METRICS, summarise
from trc2.model.backbone import Backbone
from trc2.model.compiled import compile_parts
from trc2.model.hippocampus import WriteReport
from trc2.nn.chance import keyed_generator
from trc2.replay.controller import ControllerState, ReplaySettings, control, initial_settings
from trc2.strategies import build_strategy
from trc2.stream.batches import Batch, Mixture, TaskData
from trc2.stream.prepare import PreparedStream
from trc2.train.binding import Binding
from trc2.train.chance import chance_state, chance_tensors, restore_chance
from trc2.train.checkpoint import Checkpoint, pack_optimizer, unpack_optimizer
from trc2.train.diary import Diary
from trc2.train.efficiency import efficiency, peak_matmul_flops, training_flops_per_token
from trc2.train.evaluate import control_perplexity, score_task
from trc2.train.fence import fence
from trc2.train.observers import Observer
from trc2.train.optimizer import build_optimizer, set_learning_rate
from trc2.train.plan import Plan
from trc2.train.precision import autocast, choose_device, choose_dtype, loss_scaler
from trc2.train.records import Record, score_table
from trc2.train.writer import CheckpointWriter


@dataclass
class Progress:
    """Everything besides tensors that a run must remember to go on exactly."""

    step: int = 0
    nonfinite_streak: int = 0
    gap_average: float = 0.0
    integral: float = 0.0
    train_seconds: float = 0.0
    total_seconds: float = 0.0


class Trainer:
    """Trains a model through a stream of tasks, measures what it forgets, and steers replay from it."""

    def __init__(self, config: RunConfig, prepared: PreparedStream, folder: Path, observers: list[Observer]) -> None:
        assert config.stream is not None
        self.config, self.prepared, self.folder, self.observers = config, prepared, folder, observers
        self.plan = Plan.of_run(config)
        self.device = choose_device(config.output.device)
        self.dtype = choose_dtype(config.train.precision, self.device)
        check_vocabulary(config.model.vocab_size, prepared.tokenizer.vocab_size)
        self.model = build_model(config.model, keyed_generator("weights", config.train.seed)).to(self.device).train()
        if config.output.compile:
            compile_parts(self.model)
        self.optimizer = build_optimizer(self.model, config.train, self.model.tensors_without_reader())
        self.scaler = loss_scaler(self.device, self.dtype)
        self.strategy = build_strategy(config.strategy, self.model)
        self.tasks = {
            task.name: TaskData(
                prepared.tasks[task.name], index, length=config.train.sequence_length,
                batch_size=config.train.batch_size, micro_batches=config.train.micro_batches, seed=config.train.seed,
                control_batches=config.stream.control_batches,
            )
            for index, task in enumerate(config.stream.tasks)
        }  # fmt: skip
        for name, data in self.tasks.items():
            if data.task.splits["validation"].tokens < 2:
                raise UserError(
                    f"Task '{name}' has no validation text, so nothing could be measured: put a validation.jsonl or "
                    "validation.txt into its folder, or set its holdout above 0."
                )
        trained = [self.tasks[stretch.task] for stretch in self.plan.stretches]
        self.mixture = Mixture(trained, self.plan.steps) if config.stream.mode == "joint" else None
        self.progress = Progress()
        self.control_post: dict[str, float] = {}
        self.history: list[Record] = []
        self._apply(initial_settings(config.control))
        self.stop_requested = False
        self.binding: Binding | None = None
        self.writer = CheckpointWriter(
            folder / "checkpoints", config.output.keep_checkpoints, {stretch.end for stretch in self.plan.stretches}
        )
        self.saved_step: int | None = None
        self._begun = time.monotonic()

    def bind(self, diary: Diary) -> None:
        """Keep a diary, and let every checkpoint say to which settings, data and diary it belongs."""
        self.observers.insert(0, diary)
        self.binding = Binding(self.folder, diary)
        self.writer.before = diary.sync

    # ---------------------------------------------------------------------------------------------------- the stream

    def run(self) -> None:
        """From wherever the run stands to the end of the stream."""
        state, plan, every = self.progress, self.plan, self.config.eval.every_steps
        if state.step == 0:
            self.evaluate(list(self.tasks))  # before any training
        while state.step < plan.total_steps and not self.stop_requested:
            if state.step == plan.at(state.step).start:
                self.begin_task()
            record = self.train_step()
            is_boundary = plan.is_boundary(state.step)
            self.tell(record)
            if is_boundary or state.step % every == 0:
                self.evaluate(list(self.tasks) if is_boundary else plan.seen(state.step))
            if is_boundary:
                self.remember_reference()
                self.strategy.end_task(self._sequences(record.task, self._last_steps(record.task)))
            if state.step % self.config.control.every_steps == 0:
                self.steer()
            if is_boundary or self.stop_requested or state.step % self.config.output.checkpoint_every == 0:
                self.save_unless_failing()
        if state.step == plan.total_steps:
            self.finish()
        self.writer.wait()

    def train_step(self) -> Record:
        """One optimizer step: all micro-batches, flush, optimizer, slow targets."""
        model, optimizer, state = self.model, self.optimizer, self.progress
        begun = time.monotonic()
        failpoint("step")
        stretch = self.plan.at(state.step)
        batches = self.train_batches(state.step)
        num_labels = sum(batch.num_labels for batch in batches)
        rate = self.plan.learning_rate(state.step)
        set_learning_rate(optimizer, rate)
        optimizer.zero_grad(set_to_none=True)
        losses: dict[str, float] = {}
        for micro_step, batch in enumerate(batches):
            model.clock.set(state.step, micro_step)
            with autocast(self.device, self.dtype):
                _, aux = model(
                    batch.x.to(self.device), batch.y.to(self.device), origin=batch.origin, return_logits=False
                )
            share, weight = batch.num_labels / max(1, num_labels), 1 / len(batches)
            # |Ω| is counted over the whole step; the other losses are averaged over its micro-batches.
            loss = aux["loss_lm"] * share + (aux["loss"] - aux["loss_lm"]) * weight
            self.scaler.scale(loss).backward()
            parts = {name: value * weight for name, value in aux.items() if name.startswith("loss")}
            for name, value in {**parts, "loss_lm": aux["loss_lm"] * share, "loss": loss}.items():
                losses[name] = losses.get(name, 0.0) + float(value.detach())

        self.scaler.unscale_(optimizer)
        corrections = self.strategy.correct_gradients(state.step)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.config.train.clip_norm))
        if math.isfinite(norm) and all(math.isfinite(value) for value in losses.values()):
            writes = model.flush_pending_write()
            self.scaler.step(optimizer)
            model.update_slow_targets()
            state.nonfinite_streak = 0
        else:
            model.discard_pending_write()
            model.clock.set(state.step + 1, 0)
            writes = None
            state.nonfinite_streak += 1
        self.scaler.update()
        state.step += 1
        seconds = time.monotonic() - begun
        state.train_seconds += seconds
        if writes is None:
            self._stop_if_hopeless(stretch.task)
        metrics = {f"train/{name}": value for name, value in losses.items()}
        metrics |= {"train/learning_rate": rate, "train/gradient_norm": norm, **corrections}
        metrics |= {"train/tokens_per_second": self.config.train.tokens_per_step / seconds, **self._dynamics(writes)}
        return Record("train" if writes is not None else "nonfinite", state.step, stretch.task, metrics, self._clock())

    def train_batches(self, step: int) -> list[Batch]:
        """The micro-batches of a step: of the task that is trained, or of all of them mixed."""
        if self.mixture is not None:
            return self.mixture.train_batches(step)
        stretch = self.plan.at(step)
        return self.tasks[stretch.task].train_batches(step - stretch.start)

    # ---------------------------------------------------------------------------------------------- at step boundaries

    def begin_task(self) -> None:
        """Tell the backbone that another task begins; done again on a resume from this very step, to no effect."""
        step = self.progress.step
        task = self.plan.at(step).task
        self.model.begin_task(self.plan.index(step), (x for x, _ in self._sequences(task, count())))

    def evaluate(self, names: list[str]) -> None:
        """Score tasks on their validation splits and derive what was forgotten."""
        state = self.progress
        failpoint("evaluation")
        metrics: dict[str, float] = {}
        config = self.config.eval
        if config.text_when == "boundaries" and state.step > 0 and not self.plan.is_boundary(state.step):
            config = config.replace(text_sequences=0)
        with fence(config.fence, self.model, self.optimizer):
            for name in names:
                scores = score_task(
                    self.model, self.tasks[name], "validation", config, self.prepared.tokenizer, self.device
                )
                metrics |= {f"eval/{name}/{key}": value for key, value in scores.items()}
        record = Record("eval", state.step, self._current_task(), metrics, self._clock())
        for metric in METRICS.values():
            table = score_table([*self.history, record], metric, self.plan.stretches)
            if state.step > 0 and table.has(state.step, names[0]):
                record.metrics.update(summarise(table, state.step))
        self.tell(record)

    def remember_reference(self) -> None:
        """P_post of the task that just ended, on its control subset."""
        name = self._current_task()
        failpoint("boundary")
        value = self.control_perplexities([name])[name]
        self.control_post[name] = value
        self.tell(Record("boundary", self.progress.step, name, {f"control/{name}/perplexity": value}, self._clock()))

    def steer(self) -> None:
        """The replay controller, once some task is past."""
        config, state = self.config.control, self.progress
        past = self.plan.past(state.step)
        if config.mode != "closed_loop" or self.model.replay is None or not past:
            return
        failpoint("controller")
        current = self.control_perplexities(past)
        memory, trace = control(config, ControllerState(state.gap_average, state.integral), current, self.control_post)
        state.gap_average, state.integral = memory.gap_average, memory.integral
        self._apply(trace.settings)
        metrics = trace.metrics() | {f"control/{name}/perplexity": value for name, value in current.items()}
        self.tell(Record("control", state.step, self._current_task(), metrics, self._clock()))

    def control_perplexities(self, names: list[str]) -> dict[str, float]:
        """What the replay controller looks at; a model whose perplexity is no number must not steer anything."""
        with fence(self.config.eval.fence, self.model, self.optimizer):
            found = {
                name: control_perplexity(self.model, self.tasks[name], self.config.eval.batch_size, self.device)
                for name in names
            }
        for name, value in found.items():
            if not math.isfinite(value):
                raise UserError(
                    f"The control perplexity of task '{name}' is {value} at step {self.progress.step}: the model is "
                    "broken; lower train.learning_rate and start again."
                )
        return found

    def finish(self) -> None:
        """Test splits, once, and what the run cost."""
        failpoint("end")
        metrics: dict[str, float] = {}
        if self.config.eval.test:
            for name, data in self.tasks.items():
                if data.task.splits["test"].tokens > 1:
                    scores = score_task(
                        self.model, data, "test", self.config.eval, self.prepared.tokenizer, self.device
                    )
                    metrics |= {f"test/{name}/{key}": value for key, value in scores.items()}
            self.tell(Record("test", self.progress.step, self._current_task(), metrics, self._clock()))
        per_token = training_flops_per_token(self.config, self.model.num_events, self.config.control.mode != "off")
        state = self.progress
        tokens = state.step * self.config.train.tokens_per_step
        peak = peak_matmul_flops(self.device)
        cost = efficiency(self.device, tokens, state.train_seconds, self._clock(), per_token, peak)
        self.tell(Record("end", state.step, self._current_task(), cost, self._clock()))

    # -------------------------------------------------------------------------------------------------- saving, telling

    def checkpoint(self) -> Checkpoint:
        """Everything that the rest of the run depends on."""
        self.progress.total_seconds = self._clock()
        tensors = {f"model.{name}": tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        tensors |= pack_optimizer(self.optimizer)
        tensors |= {f"strategy.{name}": tensor for name, tensor in self.strategy.tensors.items()}
        tensors |= chance_tensors()
        state = {
            "progress": asdict(self.progress),
            "control_post": dict(self.control_post),
            "scaler": self.scaler.state_dict(),
            "chance": chance_state(),
        }
        return Checkpoint(self.progress.step, tensors, state, {} if self.binding is None else self.binding.describe())

    def restore(self, checkpoint: Checkpoint, history: list[Record]) -> None:
        """Go back to where a checkpoint was taken."""
        load_state(self.model, checkpoint)
        try:
            unpack_optimizer(self.optimizer, checkpoint.tensors)
            self.strategy.restore(checkpoint.part("strategy"))
            restore_chance(checkpoint.tensors, checkpoint.state["chance"])
            self.progress = Progress(**checkpoint.state["progress"])
            if not all(type(value) in (int, float) for value in asdict(self.progress).values()):
                raise TypeError("its progress is no numbers")
            self.control_post = dict(checkpoint.state["control_post"])
            if self.scaler.is_enabled():
                self.scaler.load_state_dict(checkpoint.state["scaler"])
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{checkpoint.name} holds a state that this version cannot take ({type(error).__name__}: "
                f"{brief(error)}): resume it with the version that saved it."
            ) from error
        self.history = [record for record in history if record.step <= checkpoint.step]
        self._begun = time.monotonic() - self.progress.total_seconds

    def save(self) -> None:
        """Hand a copy to the writer; it is on disk soon after, and surely when the run ends.

        In a row of failing steps nothing is pruned: the checkpoint to go back to is one from before it.
        """
        self.writer.write(self.checkpoint(), prune=self.progress.nonfinite_streak == 0)
        self.saved_step = self.progress.step

    def save_unless_failing(self) -> None:
        """No checkpoint in a row of failing steps, or it would push out those from before; but one at the very end."""
        if self.progress.nonfinite_streak == 0 or self.progress.step == self.plan.total_steps:
            self.save()

    def tell(self, record: Record) -> None:
        if record.kind == "eval":
            self.history.append(record)
        for observer in self.observers:
            observer.see(record)

    def _sequences(self, task: str, steps: Iterable[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Training batches of a task's own steps, one after the other, made as they are asked for."""
        for step in steps:
            for batch in self.tasks[task].train_batches(step):
                yield batch.x.to(self.device), batch.y.to(self.device)

    def _last_steps(self, task: str) -> range:
        """The numbers of a task's own steps, newest first."""
        stretch = next(stretch for stretch in self.plan.stretches if stretch.task == task)
        return range(stretch.end - stretch.start - 1, -1, -1)

    def _apply(self, settings: ReplaySettings) -> None:
        if self.model.replay is not None:
            self.model.replay.control(settings.coefficient, settings.batch_size, settings.long_fraction)

    def _dynamics(self, writes: WriteReport | None) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if self.model.replay is not None:
            metrics["replay/coefficient"] = float(self.model.replay.coefficient)
        if writes is not None and self.model.has_memory:
            metrics |= {f"hippocampus/{name}": float(value) for name, value in asdict(writes).items()}
            metrics["hippocampus/keep_fraction"] = writes.keep_fraction
            metrics["hippocampus/raw_fraction"] = writes.raw_fraction
        return metrics

    def _stop_if_hopeless(self, task: str) -> None:
        streak = self.progress.nonfinite_streak
        if streak >= self.config.train.max_nonfinite_steps:
            self.tell(Record("nonfinite", self.progress.step, task, {}, self._clock()))
            raise UserError(
                f"The gradients were not finite in {streak} steps in a row, up to step {self.progress.step}: lower "
                f"train.learning_rate and start again, or resume from the last good checkpoint in {self.folder}."
            )

    def _current_task(self) -> str:
        """The task trained last, at step 0 the one that comes first."""
        return self.plan.at(max(0, self.progress.step - 1)).task

    def _clock(self) -> float:
        return time.monotonic() - self._begun


def load_state(model: Backbone, checkpoint: Checkpoint, *, without: str = "-") -> None:
    """Put a checkpoint's weights, memory and stores into a model; tensors named `without…` stay out."""
    tensors = checkpoint.part("model")
    try:
        model.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith(without)})
    except RuntimeError as error:
        raise UserError(
            f"{checkpoint.name} does not fit its config.yaml ({brief(error)}): restore the file that was saved with it."
        ) from None


def check_vocabulary(model: int, tokenizer: int) -> None:
    """Every token must have an embedding."""
    if model < tokenizer:
        raise UserError(
            f"model.vocab_size={model} is smaller than the tokenizer's {tokenizer}: set model.vocab_size={tokenizer}."
        )
