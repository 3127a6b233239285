"""When checkpoints are written, and to what they belong."""

from __future__ import annotations

from trc2.ranks.group import ALONE, Ranks
from trc2.runs.binding import Binding
from trc2.runs.folder import RunFolder
from trc2.runs.plan import Plan
from trc2.runs.records import Diary
from trc2.runs.writer import CheckpointWriter
from trc2.training.observers import Story
from trc2.training.state import RunState


class Saver:
    """Hands pictures of the state to a writer in a thread; they are on disk soon after, and surely when a run ends.

    What is the same on all ranks the first one writes; what is divided everyone.
    """

    def __init__(self, folder: RunFolder, plan: Plan, keep_last: int, ranks: Ranks = ALONE) -> None:
        self.total_steps, self.ranks = plan.total_steps, ranks
        ends = {stretch.end for stretch in plan.stretches} | plan.branch_points
        self.writer = CheckpointWriter(folder.checkpoints, keep_last, ends, ranks=ranks)
        self.binding: Binding | None = None
        self.saved_step: int | None = None

    def bind(self, folder: RunFolder, diary: Diary) -> None:
        """From now on every checkpoint says to which settings, data and diary it belongs, and waits for the diary."""
        self.binding = folder.binding(diary)
        self.writer.before = diary.sync

    def save(self, state: RunState, story: Story) -> None:
        """Hand over a copy. In a row of failing steps nothing is pruned: one goes back to before it."""
        state.progress.total_seconds = story.seconds
        if self.ranks.is_first or state.parallel.is_divided:
            run = {} if self.binding is None else self.binding.describe()
            self.writer.write(state.to_checkpoint(run), prune=state.progress.nonfinite_streak == 0)
        self.saved_step = state.progress.step

    def save_unless_failing(self, state: RunState, story: Story) -> None:
        """No checkpoint in a row of failing steps, or it would push out those from before; but one at the very end."""
        if state.progress.nonfinite_streak == 0 or state.progress.step == self.total_steps:
            self.save(state, story)
