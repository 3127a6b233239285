"""Stop a continued run in time: end it where its past tasks were last within --stop-at."""

from __future__ import annotations

from collections.abc import Sequence

from trc2.distributed.group import Ranks
from trc2.runs.folder import RunFolder
from trc2.runs.stopping import Stop, StopRule, rises_since
from trc2.system.failpoints import failpoint
from trc2.training.checkpoint_writer import CheckpointWriter
from trc2.training.observers import Recorder
from trc2.training.state import RunState


class EarlyStop:
    """Compares past tasks with their scores before the run. Without --stop-at it only says which tasks to measure."""

    def __init__(self, folder: RunFolder, recorder: Recorder, writer: CheckpointWriter, ranks: Ranks) -> None:
        self.folder, self.recorder, self.writer, self.ranks = folder, recorder, writer, ranks
        lineage = folder.lineage()
        self.watched = () if lineage is None else lineage.watched
        self.rule = StopRule.of(lineage)
        self.always_kept = frozenset(writer.keep_steps)
        self.has_stopped = False  # the run must be resumed to end at an earlier step

    @property
    def is_on(self) -> bool:
        return self.rule is not None

    def with_watched(self, tasks: Sequence[str]) -> list[str]:
        """The tasks that an evaluation within a task scores: these, and those that are watched."""
        return [*tasks, *(task for task in self.watched if task not in tasks)]

    def keep_last_good(self) -> None:
        """Protect the checkpoint of the last evaluation within the limit from being pruned."""
        if self.rule is not None and (good := self._last_good(self.rule)) is not None:
            self.writer.keep_steps = self.always_kept | {good}

    def is_due(self, state: RunState) -> bool:
        """Whether the newest evaluation passed the limit. If so, note where the run ends: resuming brings it there.

        Without an evaluation within the limit there is nothing to go back to, and the run ends here, above its limit.
        """
        rule, step = self.rule, state.progress.step
        if rule is None:
            return False
        rises = rises_since(self.recorder.evaluations, rule.first_step, rule.tasks).get(step, {})
        if rule.is_within(rises):
            return False
        good = self._last_good(rule)
        if good is None:
            self.writer.save(state, self.recorder)
        self.writer.wait()
        failpoint("stop")
        stop = Stop(rule.limit, step if good is None else good, step, rises)
        self.ranks.on_first(lambda: stop.write(self.folder.stop_file))
        self.has_stopped = True
        return True

    def _last_good(self, rule: StopRule) -> int | None:
        """The step of the last evaluation within the limit that has a checkpoint."""
        self.writer.wait()
        steps = rule.last_good(self.recorder.evaluations)
        good = self.ranks.first_says(next((step for step in steps if self.folder.has_checkpoint(step)), -1))
        return None if good < 0 else good
