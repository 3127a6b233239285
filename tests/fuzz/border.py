"""One case from its beginning to its end: laid out, damaged, run through the real border, judged, cleaned up."""

from __future__ import annotations

import io
import random
import resource
import shutil
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from tests.fuzz.cases import Case, Damage
from tests.fuzz.damage import bomb, damage_file, forge_checkpoint, spoil_weights, take_foreign
from tests.fuzz.functions import FUNCTIONS, expectations
from tests.fuzz.judge import Judge, Problem, Ran, snapshot
from tests.fuzz.world import World, add_oddities, inside
from trc2 import cli
from trc2.errors import UserError, sentence_of

SECONDS = 10.0  # of work
GROWTH_MB = 2000


class TooLong(BaseException):
    """Raised by the alarm. No `except Exception` may swallow it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case. CPU seconds count laying out and judging, but not what else the machine does."""

    kind: str
    problems: tuple[Problem, ...]
    seconds: float
    code: int | None
    growth_mb: float
    cpu_seconds: float = 0.0
    output: str = ""


class Border:
    """Runs cases in a scratch folder of its own, one after the other."""

    def __init__(self, world: World, scratch: Path, log: Path) -> None:
        self.world, self.scratch, self.log = world, scratch, log
        with inside(world.root):
            self.judge = Judge(world, scratch, expectations(world))

    def run(self, case: Case) -> Outcome:
        worked = time.process_time()
        shutil.rmtree(self.scratch, ignore_errors=True)  # a thread of the last case may have written once more
        self.scratch.mkdir(parents=True)
        try:
            with inside(self.scratch):
                self._lay_out(case)
                before, told = snapshot(self.scratch), self.log.stat().st_size
                memory, begun = _peak_mb(), time.monotonic()
                ran = self._call(case) if case.is_call else self._type(case)
                seconds, growth = time.monotonic() - begun, _peak_mb() - memory
                _reset_process()
                problems = [] if ran.problem is None else [ran.problem]
                if growth > GROWTH_MB:
                    problems.append(Problem("memory", case.kind, f"{growth:.0f} MB more than before"))
                problems = problems or list(self.judge.judge(case, ran, before))
            native = self.log.read_bytes()[told:].decode("utf-8", "replace")  # of Rust, OpenMP and the like
            output = f"{ran.out}\n---\n{ran.err}\n---\n{native}"
            return Outcome(case.kind, tuple(problems), seconds, ran.code, growth, time.process_time() - worked, output)
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _lay_out(self, case: Case) -> None:
        self.world.lay_out(case.parts, self.scratch)
        add_oddities(self.scratch)
        for damage in case.damage:
            # An earlier damage may have left nothing to damage, or nothing that could be forged.
            with suppress(OSError, LookupError, TypeError, ValueError, struct.error):
                self._damage(damage)
        for name, text in case.texts:
            Path(name).write_bytes(text.encode("utf-8", "surrogatepass"))

    def _damage(self, damage: Damage) -> None:
        path, rng = self.scratch / damage.path, random.Random(damage.seed)
        match damage.how:
            case "forged":
                forge_checkpoint(path, rng)
            case "no numbers":
                spoil_weights(path)
            case "foreign":
                take_foreign(path, self.world.root / "other" / "checkpoints" / path.name)
            case "bomb":
                bomb(path, rng.randint(1, 100))
            case how:
                damage_file(path, how, rng)

    def _type(self, case: Case) -> Ran:
        """A command as if typed. Every seventh terminal knows ASCII only."""
        encoding = "ascii" if case.index % 7 == 3 else "utf-8"
        written, warned = io.BytesIO(), io.BytesIO()
        out = io.TextIOWrapper(written, encoding, write_through=True)
        err = io.TextIOWrapper(warned, encoding, write_through=True)
        before = sys.argv, sys.stdout, sys.stderr
        sys.argv, sys.stdout, sys.stderr = ["trc2", *case.argv], out, err
        code, problem = None, None
        try:
            with _alarm():
                cli.main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException as error:
            problem = _escaped(error)
        finally:
            sys.argv, sys.stdout, sys.stderr = before
        out.flush()
        err.flush()
        told, error_told = (stream.getvalue().decode("utf-8", "replace") for stream in (written, warned))
        return Ran(code, told, error_told, problem=problem)

    def _call(self, case: Case) -> Ran:
        """A function below the commands: what its error would tell at the border counts."""
        try:
            with _alarm():
                return Ran(0, "", "", FUNCTIONS[case.kind](*case.argv))
        except BaseException as error:
            sentence = sentence_of(error) if isinstance(error, Exception) else None
            if sentence is None:
                return Ran(None, "", "", problem=_escaped(error))
            return Ran(getattr(error, "exit_code", UserError.exit_code), "", f"error: {' '.join(sentence.split())}\n")


def _escaped(error: BaseException) -> Problem:
    """The traceback that users would see, by its origin."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/trc2/" in frame.filename] or list(frames)
    place = f"{ours[-1].filename.rsplit('/trc2/', 1)[-1]}:{ours[-1].name}"
    told = "".join(traceback.format_exception(error))[-3000:]
    if isinstance(error, TooLong):
        return Problem("too long", place, told)
    return Problem("traceback", f"{type(error).__name__} {place}", told)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def _alarm() -> Iterator[None]:
    """Raises after too much work. A busy machine does not count. The server ends a case that only waits."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TooLong(f"more than {SECONDS:.0f} s of work")

    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _reset_process() -> None:
    """Undo what a case may set for its whole process, before the next case."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)
