"""Four weeks of a model that is kept current: teach, check, refuse a harmful week, go back, teach again, look at it.

    python examples/four_weeks.py MODEL DATA OUT [--kill]

MODEL is any causal language model of transformers. DATA holds the folders week1 to week4 with new text, and old with
text that the model should go on knowing. With --kill two of the commands are killed on the way, as by a power cut, and
given again: the versions are the same to the bit.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

MODEL, DATA, OUT = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
IS_KILLED = "--kill" in sys.argv
VERSIONS = str(OUT / "versions")
SETTINGS = ["train.batch_size=4", "eval.text_sequences=0", f"stream.cache={OUT / 'cache'}"]


def trc2(*words: str, exit_code: int = 0, kill_at: str | None = None) -> str:
    """One command and what it prints. If it is killed at a named point, the same command is given again."""
    command = [sys.executable, "-m", "trc2", *words]
    if IS_KILLED and kill_at is not None:
        killed = subprocess.run(command, capture_output=True, env={**os.environ, "TRC2_KILL_AT": kill_at}, check=False)
        print(f"$ trc2 {words[0]} … was killed at {kill_at} ({killed.returncode})")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"$ trc2 {' '.join(words)}")
    if done.returncode != exit_code:
        raise SystemExit(f"exit code {done.returncode} and not {exit_code}: {done.stderr}")
    return done.stdout


def teach(week: int, *settings: str, exit_code: int = 0, kill_at: str | None = None) -> None:
    """The line for cron: the same every week, also after a crash."""
    trc2(
        "continue", VERSIONS, "--task", f"news={DATA / f'week{week}'}", "--keep", f"old={DATA / 'old'}",
        "--steps", "6", "--max-forgetting", "1", "--promote", "--json", *SETTINGS, *settings,
        exit_code=exit_code, kill_at=kill_at,
    )  # fmt: skip


def accepted() -> str:
    rows = json.loads(trc2("runs", VERSIONS, "--json"))["runs"]
    return next(str(row["name"]) for row in rows if row["state"] == "accepted")


trc2("promote", VERSIONS, MODEL, "--first", "--reason", "the model we have")
first = accepted()
teach(1, kill_at="step:4")  # in the middle of training
teach(2, kill_at="version rename:1")  # the version has its name, but is not in the table yet
good = accepted()
teach(3, "train.learning_rate=3", exit_code=3)  # harms the old text, so it is refused
assert accepted() == good
trc2("rollback", VERSIONS, "--reason", "week 2 was wrong")
teach(4)

print(trc2("runs", VERSIONS, "--picture", str(OUT / "tree.png")))
print(trc2("diff", f"{VERSIONS}/{first}", VERSIONS))
print(trc2("export", VERSIONS, str(OUT / "model")))
print(f"accepted: {accepted()}")
