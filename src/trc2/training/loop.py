"""The training loop: everything that changes learning, in order. Observers only receive records."""

from __future__ import annotations

import math
import time
from itertools import count

from trc2.config import RunConfig
from trc2.distributed.group import ALONE, Ranks
from trc2.errors import UserError
from trc2.runs.folder import RunFolder
from trc2.runs.records import Kind, Record
from trc2.stream.packed import PreparedStream
from trc2.system.failpoints import failpoint
from trc2.system.precision import autocast, choose_device
from trc2.training.checkpoint_writer import CheckpointWriter
from trc2.training.data import StreamData
from trc2.training.early_stop import EarlyStop
from trc2.training.evaluation import Evaluator, add_up_losses, dynamics
from trc2.training.observers import Observer, Recorder
from trc2.training.optimizer import set_learning_rate
from trc2.training.state import RunState


class Trainer:
    """Trains a model through a stream of tasks, measures what it forgets, and steers replay from it."""

    def __init__(
        self, config: RunConfig, prepared: PreparedStream, folder: RunFolder, observers: list[Observer],
        ranks: Ranks = ALONE, *, will_restore: bool = False,
    ) -> None:  # fmt: skip
        self.config, self.folder, self.ranks = config, folder, ranks
        self.share = ranks.share(config.train.micro_batches)  # which micro-batches of every step are run here
        self.schedule = folder.schedule(config)
        self.stream_data = StreamData(config, self.schedule, prepared)
        self.state = RunState(config, choose_device(config.output.device), ranks, will_restore=will_restore)
        self.recorder = Recorder(observers)
        self.evaluator = Evaluator(config, self.schedule, self.stream_data, self.state, self.recorder)
        keep_steps = {span.end for span in self.schedule.spans} | self.schedule.branch_points
        self.writer = CheckpointWriter(folder.checkpoints, config.output.keep_checkpoints, keep_steps, ranks)
        self.early_stop = EarlyStop(folder, self.recorder, self.writer, ranks)
        self.stop_requested = self.stopped = False

    def request_stop(self) -> None:
        """Stop after the current step."""
        self.stop_requested = True

    def run(self) -> None:
        """Train from the current step to the end of the stream."""
        config, schedule, state, evaluator = self.config, self.schedule, self.state, self.evaluator
        progress, tasks = state.progress, list(self.stream_data.tasks)
        if progress.step == 0:
            self.stream_data.fill(state.model.replay)
            evaluator.evaluate(tasks)  # before any training
        if self.folder.stop_file.exists() and progress.boundary_step < progress.step:
            self.end_task(tasks)  # the run stopped within a task
            self.writer.save(state, self.recorder)
        elif not self.folder.stop_file.exists() and self.early_stop.is_due(state):
            return  # it was killed after the checkpoint of its stop, before the stop was noted
        self.early_stop.keep_last_good()
        self.stopped = self.ranks.total(self.stop_requested) > 0
        while progress.step < schedule.total_steps and not self.stopped:
            if progress.step == schedule.at(progress.step).start:
                # Done again when a run is resumed at this very step, to no effect.
                self.restore_pre_anneal_weights()
                task = schedule.at(progress.step).task
                sequences = self.stream_data.sequences(task, count(), state.device)
                state.model.begin_task(schedule.index(progress.step), (x for x, _ in sequences))
            record = self.train_step()
            if config.output.check_ranks:
                state.check_ranks_agree()
            self.recorder.emit(record)
            is_boundary = schedule.is_boundary(progress.step)
            is_evaluated = is_boundary or progress.step % config.eval.every_steps == 0
            if is_evaluated:
                evaluator.evaluate(tasks if is_boundary else self.early_stop.with_watched(schedule.seen(progress.step)))
                if self.early_stop.is_due(state):
                    return
            if is_boundary:
                self.end_task()
            if progress.step % config.control.period == 0:
                evaluator.update_replay()
            self.stopped = self.ranks.total(self.stop_requested) > 0
            is_wanted = progress.step in schedule.branch_points or (is_evaluated and self.early_stop.is_on)
            if is_boundary or is_wanted or self.stopped or progress.step % config.output.checkpoint_every == 0:
                self.ranks.on_first(self.stream_data.check_unchanged)
                if progress.nonfinite_streak == 0 or progress.step == schedule.total_steps:
                    self.writer.save(state, self.recorder)  # of a failing step only at the end
                    if is_evaluated:
                        self.early_stop.keep_last_good()
        if progress.step == schedule.total_steps:
            evaluator.finish()
            self.ranks.on_first(self.stream_data.check_unchanged)
        self.writer.wait()

    def end_task(self, tasks: list[str] | None = None) -> None:
        """Bring the current task to its end. `tasks` are scored first, unless they were just scored."""
        state, step = self.state, self.state.progress.step
        if tasks is not None:
            self.evaluator.evaluate(tasks)
        self.evaluator.remember_reference()
        task = self.evaluator.current_task
        sequences = self.stream_data.sequences(task, self.stream_data.steps_of(task), state.device)
        state.strategy.end_task(sequences)
        state.progress.boundary_step = step

    def restore_pre_anneal_weights(self) -> None:
        """The last task was annealed on a branch. The next task starts from the weights before the anneal."""
        before = self.schedule.step_before_anneal(self.state.progress.step)
        if before is not None:
            self.ranks.on_first(self.writer.wait)
            self.state.restore_weights(self.folder.checkpoint_of(before))

    def train_step(self) -> Record:
        """One optimizer step: all micro-batches, then commit, optimizer, and what follows it."""
        state, progress, model = self.state, self.state.progress, self.state.model
        begun = time.monotonic()
        failpoint("step")
        task = self.schedule.at(progress.step).task
        batches = self.stream_data.batches(progress.step, self.share)
        num_labels = self.ranks.total(sum(batch.num_labels for batch in batches))
        rate = self.schedule.learning_rate(progress.step)
        set_learning_rate(state.optimizer, rate)
        state.optimizer.zero_grad(set_to_none=True)
        state.parallel.begin_step(self.share.start)
        micro_losses: list[dict[str, float]] = []
        for number, batch in zip(self.share, batches, strict=True):
            x, y = batch.x.to(state.device), batch.y.to(state.device)
            with state.micro_step(number, is_last=number == self.share[-1]):
                with autocast(state.device, state.dtype):
                    _, aux = state.parallel(x, y, origin=batch.origin, return_logits=False)
                label_share, weight = batch.num_labels / max(1, num_labels), 1 / self.config.train.micro_batches
                # |Ω| is counted over the whole step. The other losses are averaged over its micro-batches.
                loss = aux["loss_lm"] * label_share + (aux["loss"] - aux["loss_lm"]) * weight
                state.scaler.scale(loss).backward()
            parts = {name: value * weight for name, value in aux.items() if name.startswith("loss")}
            parts |= {"loss_lm": aux["loss_lm"] * label_share, "loss": loss}
            micro_losses.append({name: float(value.detach()) for name, value in parts.items()})

        state.scaler.unscale_(state.optimizer)
        corrections = state.strategy.correct_gradients(progress.step)
        train = self.config.train
        norms = state.parallel.clip(train.clip_norm, critic_apart=train.clip_critic_apart)
        losses, is_finite = add_up_losses(self.ranks, micro_losses, math.hypot(*norms.values()))
        if is_finite:
            writes = model.commit()
            model.before_step()
            state.scaler.step(state.optimizer)
            model.after_step()
            state.strategy.after_step()
            corrections |= state.observe_loss(losses["loss_lm"])
            progress.nonfinite_streak = 0
        else:  # decided before anything is written: a failed step changes only counters
            model.skip_step()
            state.strategy.skip_step()
            writes = None
            progress.nonfinite_streak += 1
        state.scaler.update()
        progress.step += 1
        seconds = max(time.monotonic() - begun, 1e-9)  # some clocks tick every 15 ms
        progress.train_seconds += seconds
        if progress.nonfinite_streak >= self.config.train.max_nonfinite_steps:
            raise self._nonfinite_error(task)
        metrics = {f"train/{name}": value for name, value in losses.items()}
        metrics |= {"train/learning_rate": rate, **corrections}
        metrics |= {f"train/{name}": norm for name, norm in norms.items()}
        metrics |= {"train/tokens_per_second": self.config.train.tokens_per_step / seconds, **dynamics(model, writes)}
        kind: Kind = "nonfinite" if writes is None else "train"
        return Record(kind, progress.step, task, metrics, self.recorder.seconds)

    def _nonfinite_error(self, task: str) -> UserError:
        progress = self.state.progress
        self.recorder.emit(Record("nonfinite", progress.step, task, {}, self.recorder.seconds))
        return UserError(
            f"The gradients were not finite in {progress.nonfinite_streak} steps in a row, up to step {progress.step}: "
            f"lower train.learning_rate and start again, or resume from the last good checkpoint in {self.folder}."
        )
