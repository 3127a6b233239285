"""trc2 from Python: train, look at a run, continue it, serve it. What is exported here is public (docs/python.md)."""

from trc2.api.functions import load_run, train
from trc2.api.model import SavedModel, load_model
from trc2.api.run import Forgetting, Run, TaskScores, continue_from
from trc2.api.serve import serve

__all__ = [
    "Forgetting", "Run", "SavedModel", "TaskScores", "continue_from", "load_model", "load_run", "serve", "train",
]  # fmt: skip
