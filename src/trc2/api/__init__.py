"""trc2 from Python: train, look at a run, go on with it. What is exported here is public and stable; docs/python.md."""

from trc2.api.handle import Forgetting, Run, TaskScores, continue_from
from trc2.api.training import load_run, train

__all__ = ["Forgetting", "Run", "TaskScores", "continue_from", "load_run", "train"]
