"""The functions below the commands that cases call directly, and what undamaged files give."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.fuzz.world import LAST, World
from trc2.backbones.saved import load_model
from trc2.config import load_recipe
from trc2.evaluation.score import score_target
from trc2.report.run import read_run
from trc2.report.summary import summary_text
from trc2.runs.checkpoint import load_checkpoint
from trc2.runs.folder import RunFolder
from trc2.runs.records import current, read_all_records
from trc2.runs.target import find_target
from trc2.stream.document import BadRows, text_format
from trc2.stream.prepare import prepare_stream
from trc2.stream.readers import read_file
from trc2.stream.tokenizer import read_tokenizer
from trc2.training.resume import resume_run


def documents(path: Path) -> list[str]:
    return [document.text for document in read_file(path, text_format("text"), 1_000_000, BadRows())]


def prepared(folder: Path) -> Any:
    """The tokens of every split of a run's stream, as the run would read them."""
    config = RunFolder(folder).config()
    assert config.stream is not None
    stream = prepare_stream(config.stream, tokenizer=read_tokenizer(folder))
    splits = {f"{name}/{split}": (task, split) for name, task in stream.tasks.items() for split in task.splits}
    tokens = {name: task.tokens(split).tobytes() for name, (task, split) in splits.items()}
    starts = {name: task.document_starts(split).tobytes() for name, (task, split) in splits.items()}
    return stream.fingerprint(), tokens, starts


def use_tokenizer(folder: Path) -> Any:
    tokenizer = read_tokenizer(folder)
    ids = tokenizer.encode_batch(["an apple, a pear 🦊"])[0]
    return tokenizer.vocab_size, tokenizer.decode(ids), tokenizer.fingerprint()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "load_recipe": lambda name, *overrides: load_recipe(name, overrides),
    "read_run_config": lambda folder: RunFolder(Path(folder)).config(),
    "load_checkpoint": lambda folder: load_checkpoint(Path(folder)),
    "load_model": lambda folder: load_model(Path(folder)),
    "load_pretrained": lambda folder: load_model(Path(folder)),
    "read_records": lambda path: current(read_all_records(Path(path))),
    "read_run": lambda folder: summary_text(read_run(Path(folder)), None),
    "read_tokenizer": lambda folder: use_tokenizer(Path(folder)),
    "read_file": lambda path: documents(Path(path)),
    "prepare_stream": lambda folder: prepared(Path(folder)),
    "resume_run": lambda folder: resume_run(Path(folder), [], Console(file=io.StringIO())),
}


def expectations(world: World) -> dict[str, Any]:
    """What undamaged files give. Runs inside the world's own folder."""
    return {
        "checkpoint": load_checkpoint(Path("run/checkpoints") / LAST["run"]),
        "model": {name: tensor.clone() for name, tensor in load_model(Path("model")).state_dict().items()},
        "scores": _scores(),
        "documents": {name: documents(Path(name)) for name in world.names("files")},
        "prepared": prepared(Path("run")),
    }


def _scores() -> list[dict[str, dict[str, float]]]:
    """What `eval` may say of the run: the scores of its newest checkpoint, or of the one before if that is damaged."""
    scores, spare = [], Path("spare")
    shutil.copytree("run", spare)
    for path in sorted((spare / "checkpoints").iterdir(), reverse=True):
        found = score_target(find_target(str(spare)), warn=print)
        scores.append(json.loads(json.dumps(found)))
        shutil.rmtree(path)
    shutil.rmtree(spare)
    return scores
