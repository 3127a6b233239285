"""The rules: one sentence or a right result, and files that existed before are neither changed nor lost."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.cases import Case
from tests.fuzz.values import ODD_RUN
from tests.fuzz.world import CUTS, IDLE, LAST, World
from trc2.backbones.saved import load_model
from trc2.config import RunConfig
from trc2.stream.tokenizer import read_tokenizer
from trc2.verify.kill_tests import compare_runs
from trc2.versions.entry import DESCRIPTION
from trc2.versions.table import read_events

# 1 is for checks that fail and 3 for the acceptance check. A case is never interrupted, so 130 would be wrong.
CODES = {
    "verify": (0, 1, 2), "continue": (0, 2, 3), "resume": (0, 2, 3), "check": (0, 2, 3), "anything": (0, 1, 2),
}  # fmt: skip
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
WRITTEN_BY_REPORTS = ("summary.md", "summary.png", "hippocampus.png")
LOCKING = ("eval", "teach", "forget", "promote", "rollback", "versions")
STORE, TABLE = "recall/store.safetensors", "versions.jsonl"
# What a command renews if it was not refused. The table of versions only gets more lines.
RENEWED = {
    "teach": STORE, "forget": STORE, "check": "acceptance.json", "promote": TABLE, "rollback": TABLE, "versions": TABLE,
}  # fmt: skip
WRITTEN_BY_RUNS = ("metrics.jsonl", "config.yaml", "config.json", "model.safetensors")
NOTES = ("Trying the one before.", "a larger one is not used.")
# How a run folder must end: as the undisturbed run of this name.
WHOLE = {**{cut: whole for whole, cut in CUTS.items()}, **{whole: whole for whole in CUTS}, ODD_RUN: "plain"}
# Children that forgot far more than their limit, and where a command line names one. parent.json has the limit and
# acceptance.json the verdict. Neither has a checksum: whoever changes the numbers in them decides otherwise. A child
# that lost one of them is still refused.
REFUSED_CHILDREN = ("child", "child_cut")
DECIDING = ("parent.json", "acceptance.json")
NAMED = {"check": 2, "resume": 1, "export": 1, "promote": 2}

Snapshot = dict[str, bytes | str]


@dataclass(frozen=True)
class Problem:
    """A broken rule. Cases that break it at the same place are one finding."""

    rule: str
    place: str
    text: str


@dataclass
class Ran:
    """What a command or function did, before it is judged."""

    code: int | None
    out: str
    err: str
    value: Any = None
    problem: Problem | None = None


class Judge:
    """Knows what undamaged files give. `scratch` is where the case ran and still lies."""

    def __init__(self, world: World, scratch: Path, expected: dict[str, Any]) -> None:
        self.world, self.scratch, self.expected = world, scratch, expected

    def judge(self, case: Case, ran: Ran, before: Snapshot) -> Iterator[Problem]:
        if not case.is_call:
            yield from self._output(case, ran)
        elif ran.code == 0:
            yield from self._value(case, ran.value)
        if case.kind in ("resume", "resume_run"):
            yield from self._resumed(case, ran, before)
        else:
            renewed = "" if ran.code == 2 else RENEWED.get(case.kind, "")
            yield from self._unchanged(case, before, with_lock=case.kind in LOCKING, renewed=renewed)
        if case.kind == "eval" and ran.code == 0 and case.argv[2:] == ("--json",):
            yield from self._scores(case, ran)
        if case.kind in ("train", "continue", "export") and ran.code == 2 and not case.is_spoilt:
            yield from self._leftovers(case, before)
        if case.kind == "export" and ran.code == 0:
            yield from self._exported(case)
        if ran.code == 0:
            yield from self._passed(case)
        is_gated = case.kind == "continue" and "--max-forgetting=0.5" in case.argv
        if is_gated and ran.code == 0 and any(damage.how == "no numbers" for damage in case.damage):
            yield Problem("gate", "no numbers", "a model with non-finite weights passed the acceptance check")

    def _output(self, case: Case, ran: Ran) -> Iterator[Problem]:
        """The exit code is one that the command knows, an error is one sentence, and nothing steers the terminal."""
        command = " ".join(case.argv[:1])
        is_usage = ran.err.startswith("Usage:")  # the parser's own box
        if ran.code not in CODES.get(case.kind, (0, 2)):
            yield Problem("exit code", f"{command} {ran.code}", f"exit code {ran.code}: {ran.err[-500:]}")
        elif ran.code == 2 and not is_usage:
            *notes, last = ran.err.removesuffix("\n").split("\n")
            before = " ".join(" ".join(notes).split())
            if not last.startswith("error: ") or not (before == "" or before.endswith(NOTES)):
                yield Problem("one sentence", _gist(last), f"the error output is {ran.err[-1500:]!r}")
            elif len(last) < len("error: x."):
                yield Problem("one sentence", _gist(last), f"the error output says nothing: {last!r}")
        elif ran.code != 2 and (ran.err.startswith("error: ") or "Traceback" in ran.err):
            yield Problem("one sentence", f"exit code {ran.code}", f"the error output is {ran.err[-1500:]!r}")
        # What `generate` prints is the model's own text, for pipes as well. Any byte may be in it.
        shown = ran.err if command == "generate" else ran.out + ran.err
        if found := CONTROL.search(shown):
            context = shown[max(0, found.start() - 60) : found.end() + 60]
            yield Problem("control characters", "usage box" if is_usage else command, f"{context!r}")

    def _unchanged(
        self, case: Case, before: Snapshot, *, with_lock: bool, note: str = "", renewed: str = ""
    ) -> Iterator[Problem]:
        """What was there is there, byte for byte, except for the files that a command may renew.

        Reports renew their own files, and `renewed` is what this command renews besides. A command that takes the lock
        may add whole lines to the metrics log and cut a torn one off: a look at a test split is noted there, and a
        resume begins there.
        """
        after = snapshot(self.scratch)
        for name, content in before.items():
            if name.startswith("cache") or after.get(name) == content:
                continue
            if case.kind in ("report", "continue", "check", "anything") and Path(name).name in WRITTEN_BY_REPORTS:
                continue
            if renewed and name.endswith(renewed) and (renewed != TABLE or _goes_on(content, after.get(name))):
                continue
            if with_lock and name.endswith(("/lock", "/lock.owner")):
                continue
            if with_lock and name.endswith("metrics.jsonl") and _goes_on(content, after.get(name)):
                continue
            if name not in after and self._is_pruned(Path(name), after):
                continue
            what = "lost" if name not in after else "changed"
            yield Problem("unchanged", f"{case.kind}: {Path(name).name}", f"{name} was {what}{note}")

    def _is_pruned(self, file: Path, after: Snapshot) -> bool:
        """Whether the table of versions says that the files of this version were pruned. Its description stays."""
        folder, version = file.parts[0], "/".join(file.parts[1:2])
        if f"{folder}/{TABLE}" not in after or f"{folder}/{version}/{DESCRIPTION}" not in after:
            return False
        events = read_events(self.scratch / folder / TABLE)
        return any((event.kind, event.version) == ("prune", version) for event in events)

    def _passed(self, case: Case) -> Iterator[Problem]:
        """Damaged files do not make a child acceptable that forgot too much."""
        if case.kind not in NAMED or "--anyway" in case.argv:
            return
        child = case.argv[NAMED[case.kind]]
        decided = any(
            damage.path == child
            or (damage.path in (f"{child}/{name}" for name in DECIDING) and damage.how in ("content", "other"))
            for damage in case.damage
        )
        if child in REFUSED_CHILDREN and child in case.parts and not decided:
            yield Problem("gate", case.kind, f"{child} forgot too much and was not refused")

    def _leftovers(self, case: Case, before: Snapshot) -> Iterator[Problem]:
        """A command that was refused can be tried again: it left nothing that would be in its own way."""
        for name in sorted(snapshot(self.scratch).keys() - before.keys()):
            if Path(name).name in WRITTEN_BY_RUNS:
                yield Problem("left behind", f"{case.kind}: {Path(name).name}", f"{name} is new")

    def _exported(self, case: Case) -> Iterator[Problem]:
        """What was exported can be opened."""
        folder = Path([word for word in case.argv if word != "--"][2])
        try:
            load_model(folder)
            read_tokenizer(folder)
        except Exception as error:
            yield Problem("right result", "export", f"the exported model cannot be opened: {error!r}")

    def _resumed(self, case: Case, ran: Ran, before: Snapshot) -> Iterator[Problem]:
        """A resumed run is the undisturbed one, or it was refused and nothing was lost. There is no third outcome."""
        folder = case.argv[0 if case.is_call else 1]
        whole = WHOLE.get(folder)
        if whole is None or folder not in case.parts:
            yield from self._unchanged(case, before, with_lock=False)
            return
        is_idle = all(d.how in ("content", "missing") and Path(d.path).name in IDLE for d in case.damage)
        if ran.code not in (0, 3):  # 3: it ended, and its acceptance check refused it
            if is_idle and len(case.argv) == (1 if case.is_call else 2):
                yield Problem("needless refusal", case.kind, ran.err[-500:])
            yield from self._unchanged(case, before, with_lock=True, note=f": {ran.err[-300:]}")
        elif not case.is_spoilt:  # with right checksums nothing can tell it from a checkpoint of ours
            differences = self._differences(whole, Path(folder), with_records=is_idle)
            if differences:
                damaged = ", ".join(sorted({Path(d.path).name for d in case.damage})) or "nothing"
                yield Problem("resumed = undisturbed", f"{damaged} damaged", "; ".join(differences[:5])[:1500])

    def _differences(self, whole: str, folder: Path, *, with_records: bool) -> list[str]:
        """compare_runs over the last checkpoint by name, whatever else lies in the damaged folder."""
        view, last = self.scratch / "view", f"checkpoints/{LAST[whole]}"
        if not (folder / last).is_dir():
            return ["it ended without its last checkpoint"]
        shutil.copytree(folder / last, view / last, symlinks=True)  # a damaged folder can hold a link to itself
        metrics_log = folder / "metrics.jsonl" if with_records else self.world.root / whole / "metrics.jsonl"
        shutil.copyfile(metrics_log, view / "metrics.jsonl")
        return compare_runs(self.world.root / whole, view)[0]

    def _scores(self, case: Case, ran: Ran) -> Iterator[Problem]:
        """Damaged checkpoints and caches are refused or passed over, they do not change a score."""
        if all(damage.path.startswith(("run/checkpoints", "cache")) for damage in case.damage):
            scores = json.loads(ran.out)
            if scores not in self.expected["scores"]:
                yield Problem("right result", "eval", f"scores are {str(scores)[:400]}, no checkpoint has these")

    def _value(self, case: Case, value: Any) -> Iterator[Problem]:
        """What a function returned from damaged files must be what it returns from whole ones, where that is known."""
        wrong = ""
        damaged = [damage.path for damage in case.damage]
        if case.kind in ("load_recipe", "read_run_config") and not isinstance(value, RunConfig):
            wrong = f"no config but {value!r}"
        elif case.kind == "load_checkpoint" and not self._is_expected_checkpoint(value):
            wrong = "another checkpoint"
        elif case.kind == "load_model" and damaged == ["model/model.safetensors"]:
            state, known = value.state_dict(), self.expected["model"]
            if any(not torch.equal(tensor, state[name]) for name, tensor in known.items()):
                wrong = "other weights than were saved"
        elif case.kind == "read_file":
            wrong = self._cut_file(case.argv[0], value)
        elif case.kind == "prepare_stream" and all(path.startswith("cache") for path in damaged):
            wrong = "other tokens than the documents have" if value != self.expected["prepared"] else ""
        if wrong:
            names = ", ".join(sorted({Path(path).name for path in damaged}))
            yield Problem("right result", f"{case.kind} {names}", wrong)

    def _is_expected_checkpoint(self, found: Any) -> bool:
        known = self.expected["checkpoint"]
        return (
            (found.step, found.state) == (known.step, known.state)
            and found.tensors.keys() == known.tensors.keys()
            and all(torch.equal(tensor, found.tensors[name]) for name, tensor in known.tensors.items())
        )

    def _cut_file(self, name: str, found: list[str]) -> str:
        """A compressed file that ends too early must not pass for a shorter one."""
        whole = self.world.parts["files"].get(name, b"")
        content = Path(name).read_bytes() if os.path.isfile(name) else b""
        is_cut = len(content) < len(whole) and whole.startswith(content)
        if name.endswith((".gz", ".zst", ".parquet")) and is_cut and found != self.expected["documents"][name]:
            return f"{len(found)} documents from a file cut at byte {len(content)} of {len(whole)}"
        return ""


def snapshot(folder: Path) -> Snapshot:
    """Every file with its bytes, every link with its target."""
    found: Snapshot = {}
    for entry in os.scandir(folder):
        if entry.is_symlink():
            found[entry.name] = os.readlink(entry.path)
        elif entry.is_dir():
            inner = snapshot(Path(entry.path))
            found |= {f"{entry.name}/{name}": content for name, content in inner.items()}
        elif entry.is_file():
            found[entry.name] = Path(entry.path).read_bytes()
    return found


def _goes_on(before: bytes | str, after: bytes | str | None) -> bool:
    """A metrics log with whole lines added, and at most its torn last line gone."""
    if not isinstance(before, bytes) or not isinstance(after, bytes):
        return False
    return after.startswith(before[: before.rfind(b"\n") + 1])


def _gist(text: str) -> str:
    """An error's line without what comes from the case, so that equal faults look equal."""
    return re.sub(r"[^A-Za-z ]+", " ", text)[:60].strip()
