"""The data of a run: training batches by step, and the splits of every task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from trc2.config import RunConfig
from trc2.errors import UserError
from trc2.replay.stores import ReplayStores, cut_chunks, mark_unlabelled
from trc2.runs.schedule import TaskSchedule
from trc2.runs.target import check_vocabulary
from trc2.stream.batches import Batch, Mixture, TaskData
from trc2.stream.packed import COUNTED, PreparedStream


class StreamData:
    """All tasks of a stream as windows of tokens, laid out over the steps of a schedule."""

    def __init__(self, config: RunConfig, schedule: TaskSchedule, prepared: PreparedStream) -> None:
        assert config.stream is not None
        self.schedule, self.tokenizer, self.seeds = schedule, prepared.tokenizer, prepared.seeds
        check_vocabulary(config.model.vocab_size, prepared.tokenizer.vocab_size, config.model.name)
        train = config.train
        learned = {span.task for span in schedule.spans}
        self.tasks = {
            task.name: TaskData(
                prepared.tasks[task.name], index, length=train.sequence_length, batch_size=train.batch_size,
                micro_batches=train.micro_batches, seed=train.seed, control_batches=config.stream.control_batches,
                is_trained=task.name in learned,
            )
            for index, task in enumerate(config.stream.tasks)
        }  # fmt: skip
        for name, data in self.tasks.items():
            info = data.task.splits["validation"]
            if info.tokens < 2 or info.counted == 0:
                raise UserError(
                    f"Task '{name}' has no validation text, so nothing could be measured: put a validation.jsonl or "
                    "validation.txt into its folder, or set its holdout above 0."
                )
        trained = [self.tasks[span.task] for span in schedule.spans]
        self.mixture = Mixture(trained, schedule.steps) if config.stream.mode == "joint" else None

    def batches(self, step: int, share: range | None = None) -> list[Batch]:
        """Micro-batches of a step, by default all of them: of the current task, or of all tasks in a joint stream."""
        if self.mixture is not None:
            return self.mixture.train_batches(step, share)
        span = self.schedule.at(step)
        return self.tasks[span.task].train_batches(step - span.start, share)

    def check_unchanged(self) -> None:
        """Fail if packed tokens were changed while the run read them."""
        for data in self.tasks.values():
            data.task.check_unchanged()

    def fill(self, stores: ReplayStores | None) -> None:
        """Put the prefill texts into the replay stores, as if they had been trained on."""
        if stores is None:
            return
        for seed in self.seeds:
            tokens = torch.from_numpy(np.array(seed.tokens("train")).astype(np.int32))
            labels = seed.labels("train")
            if labels is not None:
                tokens = mark_unlabelled(tokens, torch.from_numpy(np.array(labels) & COUNTED == 0))
            chunks = cut_chunks(tokens.unsqueeze(0), stores.chunk_length)
            if not len(chunks):
                raise UserError(
                    f"The text of '{seed.name}' to be replayed has {len(tokens)} tokens, less than one chunk of "
                    f"{stores.chunk_length}: give it more text, or leave it out of what is replayed."
                )
            stores.commit(chunks)

    def sequences(self, task: str, steps: Iterable[int], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """(x, y) of a task's own steps, batch by batch. A batch is made when the iterator reaches it."""
        for step in steps:
            for batch in self.tasks[task].train_batches(step):
                yield batch.x.to(device), batch.y.to(device)

    def steps_of(self, task: str) -> range:
        """The numbers of a task's own steps, newest first."""
        span = next(span for span in self.schedule.spans if span.task == task)
        return range(span.end - span.start - 1, -1, -1)
