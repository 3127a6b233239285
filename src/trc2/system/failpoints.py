"""Places where a test may kill the process.

`TRC2_KILL_AT="checkpoint:2"` sends this process SIGKILL, as a power cut would, the second time it passes the point
named checkpoint. Without the variable a point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "TRC2_KILL_AT"
TRAINING = ("step", "boundary", "evaluation", "controller", "checkpoint", "checkpoint rename", "end")
STOPPING = ("stop", "stopped")  # before and after a run notes that it ends early
CONTINUING = ("inherit", "inherited")  # while the parent's state is copied, and before the new folder gets its name
JUDGING = ("verdict", "verdict written")  # before and after the acceptance check writes what it found
EXPORTING = ("export", "export rename")
PREPARING = ("pack", "pack rename")
PROMOTING = ("version", "version rename", "version event")  # the version is whole, has its name, is in the table
GOING_BACK = ("rollback", "rolled back")
PRUNING = ("prune",)  # the event is in the table, the files are still there
UPLOADING = ("file", "file rename", "file row")  # before a file gets its name, before its row, before the answer
SERVING = ("job", "job end")  # after a job's process began, and before its end is written
_passed: Counter[str] = Counter()


def failpoint(name: str) -> None:
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _passed[name] += 1
    if wanted == f"{name}:{_passed[name]}":
        os.kill(os.getpid(), signal.SIGKILL)
