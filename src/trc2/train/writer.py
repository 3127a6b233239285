"""Checkpoints written behind the trainer's back: it only waits for the copy to host memory."""

from __future__ import annotations

import threading
from pathlib import Path

from torch import Tensor

from trc2.errors import UserError
from trc2.train.checkpoint import Checkpoint, prune_checkpoints, save_checkpoint


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread; a failure is raised at the next call, nothing saved is lost."""

    def __init__(self, folder: Path, keep_last: int, keep_steps: set[int]) -> None:
        self.folder, self.keep_last, self.keep_steps = folder, keep_last, keep_steps
        self._thread: threading.Thread | None = None
        self._failure: OSError | None = None

    def write(self, checkpoint: Checkpoint) -> None:
        """Copy the tensors and return; the file work happens meanwhile."""
        self.wait()
        copied = Checkpoint(checkpoint.step, _to_host(checkpoint.tensors), checkpoint.state)
        self._thread = threading.Thread(target=self._write, args=(copied,), name="checkpoint writer")
        self._thread.start()

    def wait(self) -> None:
        """Until the checkpoint under way is on disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise UserError(
                f"A checkpoint could not be written to {self.folder}: {failure.strerror or failure}; earlier ones are "
                "whole, so make room and resume."
            ) from None

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            save_checkpoint(self.folder, checkpoint)
            prune_checkpoints(self.folder, self.keep_last, self.keep_steps)
        except OSError as error:
            self._failure = error


def _to_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Private copies: the trainer goes on changing the originals."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
