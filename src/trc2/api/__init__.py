"""trc2 from Python: train, look at a run, go on with it. What is exported here is public and stable; docs/python.md."""

from trc2.api.handle import Forgetting, Run, TaskScores
from trc2.api.training import load_run, train

__all__ = ["Forgetting", "Run", "TaskScores", "load_run", "train"]
