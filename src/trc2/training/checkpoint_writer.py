"""Checkpoints are written in a thread, so that training waits only for the copy to host memory."""

from __future__ import annotations

from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from trc2.distributed.group import ALONE, Ranks
from trc2.errors import UserError
from trc2.runs.checkpoint import Checkpoint, begin_checkpoint, prune_checkpoints, save_checkpoint, save_rows
from trc2.runs.identity import Binding
from trc2.training.observers import Recorder
from trc2.training.state import RunState


class CheckpointWriter:
    """Writes one checkpoint at a time. A failure is raised at the next call. Earlier checkpoints stay whole.

    The first rank writes the tensors that are the same on all ranks. Every rank writes its rows of divided tensors.
    """

    def __init__(self, folder: Path, keep_last: int, keep_steps: Set[int] = frozenset(), ranks: Ranks = ALONE) -> None:
        self.folder, self.keep_last, self.keep_steps, self.ranks = folder, keep_last, keep_steps, ranks
        self.saved_step: int | None = None
        self._binding: Binding | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint writer")
        self._unfinished: Future[None] | None = None

    def bind(self, binding: Binding) -> None:
        """Later checkpoints name the settings, data and metrics log they belong to, and are written after the log."""
        self._binding = binding

    def save(self, state: RunState, recorder: Recorder) -> None:
        """Copy the state of a run. While steps fail, older checkpoints are not pruned: the user goes back to one."""
        state.progress.total_seconds = recorder.seconds
        if self.ranks.is_first or state.parallel.is_divided:
            run = {} if self._binding is None else self._binding.describe()
            self.write(state.to_checkpoint(run), prune=state.progress.nonfinite_streak == 0)
        self.saved_step = state.progress.step

    def write(self, checkpoint: Checkpoint, *, prune: bool = True) -> None:
        """Copy the tensors and return. The thread writes the files."""
        self.wait()
        if checkpoint.rows:
            self.ranks.on_first(lambda: begin_checkpoint(self.folder, checkpoint.step))
        copied = replace(checkpoint, tensors=_to_host(checkpoint.tensors), rows=_to_host(checkpoint.rows))
        self._unfinished = self._thread.submit(self._write, copied, prune)

    def join(self) -> None:
        """Wait for the thread and end it. An error is kept for `wait`."""
        self._thread.shutdown()

    def wait(self) -> None:
        """Wait until the checkpoint is on disk. Raise the thread's error."""
        unfinished, self._unfinished = self._unfinished, None
        try:
            if unfinished is not None:
                unfinished.result()
        except OSError as failure:
            raise UserError(
                f"A checkpoint could not be written to {self.folder}: {failure.strerror or failure}: make room "
                "and resume from the last one."
            ) from None

    def _write(self, checkpoint: Checkpoint, prune: bool) -> None:
        if self._binding is not None:
            self._binding.metrics_log.sync()
        if checkpoint.rows:
            save_rows(self.folder, checkpoint, self.ranks.rank, self.ranks.world)
        if not self.ranks.is_first:
            return
        save_checkpoint(self.folder, checkpoint, self.ranks.world)
        if prune:
            prune_checkpoints(self.folder, self.keep_last, self.keep_steps)


def _to_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Private copies: training changes the originals."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
