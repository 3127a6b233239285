"""Writing checkpoints in a thread, so that training waits only for the copy to host memory; and when that happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from trc2.distributed.group import ALONE, Ranks
from trc2.errors import UserError
from trc2.runs.checkpoint import Checkpoint, begin_checkpoint, prune_checkpoints, save_checkpoint, save_rows
from trc2.runs.folder import RunFolder
from trc2.runs.identity import Binding
from trc2.runs.records import MetricsLog
from trc2.runs.schedule import TaskSchedule
from trc2.training.observers import Recorder
from trc2.training.state import RunState


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread; a failure is raised at the next call, nothing saved is lost.

    Of several ranks the first one writes; where tensors are divided, all of them write their own rows.
    `before` is called in the thread before every checkpoint: what the checkpoint builds on must be on disk first.
    """

    def __init__(
        self,
        folder: Path,
        keep_last: int,
        keep_steps: set[int],
        before: Callable[[], None] = lambda: None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.folder, self.keep_last, self.keep_steps, self.before = folder, keep_last, keep_steps, before
        self.ranks = ranks
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def write(self, checkpoint: Checkpoint, *, prune: bool = True) -> None:
        """Copy the tensors and return; the file work happens meanwhile."""
        self.wait()
        if checkpoint.rows:
            self.ranks.on_first(lambda: begin_checkpoint(self.folder, checkpoint.step))
        copied = replace(checkpoint, tensors=_to_host(checkpoint.tensors), rows=_to_host(checkpoint.rows))
        self._thread = threading.Thread(target=self._write, args=(copied, prune), name="checkpoint writer")
        self._thread.start()

    def join(self) -> None:
        """Until nothing is being written; `wait` is what raises the writer's error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """Until the checkpoint under way is on disk."""
        self.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            if not isinstance(failure, OSError):
                raise failure
            raise UserError(
                f"A checkpoint could not be written to {self.folder}: {failure.strerror or failure}; earlier ones are "
                "whole, so make room and resume."
            ) from None

    def _write(self, checkpoint: Checkpoint, prune: bool) -> None:
        try:
            self.before()
            if checkpoint.rows:
                save_rows(self.folder, checkpoint, self.ranks.rank, self.ranks.world)
            if not self.ranks.is_first:
                return
            save_checkpoint(self.folder, checkpoint, self.ranks.world)
            if prune:
                prune_checkpoints(self.folder, self.keep_last, self.keep_steps)
        except Exception as error:  # kept for the trainer's thread to raise
            self._failure = error


def _to_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Private copies: the trainer goes on changing the originals."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


class Saver:
    """Hands pictures of the state to a writer in a thread; they are on disk soon after, and surely when a run ends.

    What is the same on all ranks the first one writes; what is divided everyone.
    """

    def __init__(self, folder: RunFolder, plan: TaskSchedule, keep_last: int, ranks: Ranks = ALONE) -> None:
        self.total_steps, self.ranks = plan.total_steps, ranks
        ends = {span.end for span in plan.spans} | plan.branch_points
        self.writer = CheckpointWriter(folder.checkpoints, keep_last, ends, ranks=ranks)
        self.binding: Binding | None = None
        self.saved_step: int | None = None

    def bind(self, folder: RunFolder, metrics_log: MetricsLog) -> None:
        """From now on every checkpoint says to which settings, data and diary it belongs, and waits for the diary."""
        self.binding = folder.binding(metrics_log)
        self.writer.before = metrics_log.sync

    def save(self, state: RunState, recorder: Recorder) -> None:
        """Hand over a copy. In a row of failing steps nothing is pruned: one goes back to before it."""
        state.progress.total_seconds = recorder.seconds
        if self.ranks.is_first or state.parallel.is_divided:
            run = {} if self.binding is None else self.binding.describe()
            self.writer.write(state.to_checkpoint(run), prune=state.progress.nonfinite_streak == 0)
        self.saved_step = state.progress.step

    def save_unless_failing(self, state: RunState, recorder: Recorder) -> None:
        """No checkpoint in a row of failing steps, or it would push out those from before; but one at the very end."""
        if state.progress.nonfinite_streak == 0 or state.progress.step == self.total_steps:
            self.save(state, recorder)
