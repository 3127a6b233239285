"""A run folder: the names of its files, and functions to read and write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trc2.backbones.registry import build_model
from trc2.backbones.shell import Backbone
from trc2.config import RunConfig, read_settings, settings_text
from trc2.config.pretrained import copy_model_files
from trc2.errors import UserError, brief
from trc2.runs.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    list_checkpoints,
    load_checkpoint,
    load_state,
    name_of,
)
from trc2.runs.environment import (
    changes_since,
    checksum_lines,
    describe_environment,
    read_checksums,
    weight_checksums,
)
from trc2.runs.equal_cost import budget_of
from trc2.runs.identity import Binding, check_binding, learning_hash
from trc2.runs.lineage import Lineage, read_lineage
from trc2.runs.lock import LOCK, OWNER
from trc2.runs.records import MetricsLog, Record, current, read_all_records
from trc2.runs.schedule import TaskSchedule
from trc2.runs.stopping import Stop, read_stop
from trc2.strategies import build_strategy
from trc2.stream.chat import SETTINGS_FILE, write_template
from trc2.stream.packed import PreparedStream
from trc2.stream.prepare import prepare_stream
from trc2.stream.tokenizer import PRETRAINED, TOKENIZER_FILE, Tokenizer, read_tokenizer
from trc2.system.files import reading, refuse_folder, refuse_link, write_atomically

FAILURE = "failure.json"  # what a sweep keeps of a run that failed
VERSION_FILE = "version.json"  # beside a run that is part of a version, see trc2.versions
VERSIONS_TABLE = "versions.jsonl"  # in a folder of versions
SUMMARY_FILES = ("summary.md", "summary.png", "hippocampus.png")
Warn = Callable[[str], None]
"""Receives a warning for the user."""


class RunFolder:
    """The files of a run. A UserError names a file that is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.data_file = path / "data.json"
        self.tokenizer_file = path / TOKENIZER_FILE
        self.metrics_file = path / "metrics.jsonl"
        self.compressed_metrics_file = path / "metrics.jsonl.gz"
        self.budget_file = path / "budget.json"
        self.environment_file = path / "environment.json"
        self.parent_file = path / "parent.json"
        self.variant_file = path / "variant.json"  # the name that a sweep gives this run, docs/sweeps.md
        self.stop_file = path / "stopped.json"  # of a run that ended before the end of its schedule
        self.dream_file = path / "dream.jsonl"  # the text that its parent generated
        self.checkpoints = path / "checkpoints"
        self.interpolated = path / "interpolated"  # the checkpoint before the last anneal, if the end was interpolated
        self.held_out = path / "held_out"  # documents on which later runs are judged, see trc2.continuing.earlier
        self.first_weights_file = path / "pretrained.sha256"
        self.model_files = path / PRETRAINED  # the small files of the Hugging Face folder it began with

    def __str__(self) -> str:
        return str(self.path)

    def tracker_file(self, name: str) -> Path:
        """The id of this run in a tracker such as W&B."""
        return self.path / f"{name}.json"

    # ------------------------------------------------------------------------------------------------ what there is

    @property
    def is_run(self) -> bool:
        """The config is written last, so a folder with a config has the other files too."""
        return self.config_file.is_file()

    @property
    def is_of_version(self) -> bool:
        """Whether the run is part of a version."""
        return (self.path.resolve().parent / VERSION_FILE).is_file()

    @property
    def has_metrics(self) -> bool:
        return self.metrics_file.exists() or self.compressed_metrics_file.exists()

    @property
    def is_taken(self) -> bool:
        """Whether a run has begun here."""
        return self.has_metrics or bool(list_checkpoints(self.checkpoints))

    def check_is_free(self, advice: str) -> None:
        """Refuse a folder in which a run has begun."""
        if self.is_taken:
            raise UserError(f"{self} already holds a run: {advice}, or `trc2 resume {self}`.")

    def check_is_empty(self, advice: str) -> None:
        """Refuse a folder with files that are not of a run: a new run would replace some of them.

        A run that was killed before its first record leaves a lock and a description, which a new run may replace.
        """
        self.check_is_free(advice)
        names = {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()
        own = {LOCK, OWNER, FAILURE, self.variant_file.name}  # the last two are of a sweep
        if LOCK in names:
            own |= {path.name for path in self._description}
        foreign = sorted(name for name in names - own if not (name.startswith(".") and name.endswith(".partial")))
        if foreign:
            raise UserError(f"{self} holds files of others, such as {brief(foreign[0], 80)}: {advice}.")

    def refuse_links(self) -> None:
        """Refuse to write into a folder that has links in it: they may point to files outside the folder.

        Also if its summary could not be written.
        """
        inside = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        for path in (*self.path.iterdir(), *inside):
            refuse_link(path)
        self.refuse_summary_folders()

    def refuse_summary_folders(self) -> None:
        """Refuse a folder with the name of a summary file, before the work whose result the summary shows."""
        for name in SUMMARY_FILES:
            refuse_folder(self.path / name)

    @property
    def _description(self) -> tuple[Path, ...]:
        return (
            self.config_file, self.data_file, self.tokenizer_file, self.path / SETTINGS_FILE, self.budget_file,
            self.environment_file, self.first_weights_file, self.model_files,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ reading

    def config(self) -> RunConfig:
        """The resolved config: every setting, defaults too."""
        if not self.is_run:
            raise UserError(f"{self} is not a run folder: it has no {self.config_file.name}.")
        return RunConfig(**read_settings(self.config_file))

    def tokenizer(self) -> Tokenizer:
        return read_tokenizer(self.path)

    def data(self) -> dict[str, Any]:
        """The run's data: fingerprint, and documents, tokens and checksums of every split."""
        with reading(self.data_file):
            content: dict[str, Any] = json.loads(self.data_file.read_text(encoding="utf-8"))
            if not isinstance(content["fingerprint"], str) or not isinstance(content["tasks"], dict):
                raise TypeError("it does not describe data")
        return content

    def check_data(self, prepared: PreparedStream) -> None:
        """Refuse data whose tokens differ from those the run began with."""
        recorded = self.data()
        if recorded["fingerprint"] == prepared.fingerprint():
            return
        self.check_tasks(prepared, recorded["tasks"])
        raise UserError(
            f"The data of {self} has changed since the run began (the tokenizer): restore it, or start a new run."
        )

    def check_tasks(self, prepared: PreparedStream, tasks: Iterable[str], otherwise: str = "start a new run") -> None:
        """Refuse tasks whose tokens differ from those the run began with."""
        recorded, now = self.data()["tasks"], prepared.describe()["tasks"]
        changed = [
            f"{task}/{split}"
            for task in sorted(tasks)
            for split, info in recorded[task]["splits"].items()
            for new in [now.get(task, {}).get("splits", {}).get(split, {})]
            if any(new.get(name) != info.get(name) for name in ("sha256", "labels_sha256"))
        ]
        if changed:
            raise UserError(
                f"The data of {self} has changed since the run began ({', '.join(changed)}): restore it, or "
                f"{otherwise}."
            )

    def prepared(self) -> PreparedStream:
        """The run's text, packed again if the cache has lost it. Other text than it began with is refused."""
        stream = self.config().stream
        assert stream is not None
        prepared = prepare_stream(stream, tokenizer=self.tokenizer(), known=self.data()["tasks"])
        self.check_data(prepared)
        return prepared

    def lineage(self) -> Lineage | None:
        """The parent that this run continues. None if it has none.

        A run that lost its parent.json is refused: it would begin again without the parent's weights, or end without
        the check that its limit asks for.
        """
        if self.parent_file.exists():
            return read_lineage(self.parent_file)
        if self.data_file.exists() and self.data().get("has_parent"):
            raise UserError(
                f"{self} goes on from another run, but its {self.parent_file.name} is missing: restore it from a copy "
                "of the run, or remove the folder and run `trc2 continue` again."
            )
        return None

    def stop(self) -> Stop | None:
        """Where and why the run ended before the end of its schedule. None if it did not."""
        return read_stop(self.stop_file) if self.stop_file.exists() else None

    def schedule(self, config: RunConfig | None = None) -> TaskSchedule:
        """The run's tasks over its steps, up to the step at which it stopped, if it did."""
        schedule, stop = TaskSchedule.of_run(config or self.config()), self.stop()
        return schedule if stop is None else schedule.ending_at(stop.step)

    def variant(self) -> dict[str, Any] | None:
        """The name of this run in the matrix of a sweep. None if it is not of a sweep."""
        if not self.variant_file.exists():
            return None
        with reading(self.variant_file):
            content: dict[str, Any] = json.loads(self.variant_file.read_text(encoding="utf-8"))
            if not isinstance(content["axes"], dict) or not isinstance(content["title"], str):
                raise TypeError("it does not describe a run of a matrix")
        return content

    def first_weights(self) -> dict[str, str]:
        """Checksums of the pretrained files that this run, or its first parent, began with."""
        return read_checksums(self.first_weights_file) if self.first_weights_file.exists() else {}

    @property
    def first_step(self) -> int:
        """The step at which it took over from its parent."""
        lineage = self.lineage()
        return 0 if lineage is None else lineage.first_step

    def records(self) -> list[Record]:
        """The records without those that a resume superseded."""
        return current(self.all_records())

    def all_records(self) -> list[Record]:
        """Every record ever written, also from a compressed metrics log."""
        is_compressed = not self.metrics_file.exists() and self.compressed_metrics_file.exists()
        return read_all_records(self.compressed_metrics_file if is_compressed else self.metrics_file)

    def newest_checkpoint(self, warn: Warn) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None before the first one. A warning names damaged ones.

        A whole checkpoint of another run, or of other settings, data or metrics log, is refused.
        """
        paths = list_checkpoints(self.checkpoints)
        for path in reversed(paths):
            try:
                checkpoint = load_checkpoint(path)
            except DamagedCheckpoint as error:
                warn(f"{error} Trying the one before.")
            else:
                self._check_binding(checkpoint)
                return checkpoint
        if paths:
            raise UserError(
                f"None of the {len(paths)} checkpoints in {self} is whole: restore one from a copy, or run it again."
            )
        return None

    def has_checkpoint(self, step: int) -> bool:
        return (self.checkpoints / name_of(step)).is_dir()

    def checkpoint_of(self, step: int) -> Checkpoint:
        """The checkpoint of one step."""
        return load_checkpoint(self.checkpoints / name_of(step))

    def model(self, warn: Warn, *, with_replay: bool = True) -> tuple[Backbone, int]:
        """The network of the newest checkpoint as it is evaluated, and the step it was taken at."""
        checkpoint = self.newest_checkpoint(warn)
        if checkpoint is None:
            raise UserError(f"{self} has no checkpoint yet: let the run reach its first one.")
        return self.model_of(checkpoint, with_replay=with_replay), checkpoint.step

    def model_of(self, checkpoint: Checkpoint, *, with_replay: bool = True) -> Backbone:
        """The network of one checkpoint as it is evaluated."""
        run = self.config()
        config = run.model
        if config.is_quantized:
            self.check_first_weights()  # the checkpoint has only the adapters
        net = build_model(config if with_replay else config.replace(replay=False))
        load_state(net, checkpoint, without=() if with_replay else ("replay.",))
        if run.strategy.has_evaluation_weights:
            strategy = build_strategy(run.strategy, net)
            try:
                strategy.restore(checkpoint.part("strategy"))
            except (LookupError, RuntimeError) as error:
                raise UserError(
                    f"{checkpoint.name} holds no weights that {run.strategy.name} could serve ({brief(error)}): read "
                    "it with the version that saved it."
                ) from error
            strategy.apply_evaluation_weights()
        return net

    # ------------------------------------------------------------------------------------------------ writing

    def describe(self, config: RunConfig, prepared: PreparedStream, parent: RunFolder | None = None) -> None:
        """Write the files that never change: data, tokenizer, environment, and last the config.

        The first weights of a run with a parent are those of the parent, even if the pretrained folder has changed.
        """
        pretrained = config.model.pretrained_from
        write_atomically(self.budget_file, json.dumps(budget_of(config).describe(), indent=2).encode())
        write_atomically(self.environment_file, json.dumps(describe_environment(), indent=2).encode())
        data = {**prepared.describe(), "has_parent": self.parent_file.exists()}
        write_atomically(self.data_file, json.dumps(data, indent=2).encode())
        write_atomically(self.tokenizer_file, prepared.tokenizer.to_json().encode())
        if prepared.tokenizer.end is not None:
            settings = {"eos_token": prepared.tokenizer.end}
            write_atomically(self.path / SETTINGS_FILE, json.dumps(settings, indent=2).encode())
        with suppress(UserError):  # a broken template matters only to conversations, which were packed before
            if prepared.tokenizer.chat is not None and pretrained is None:
                write_template(self.model_files, prepared.tokenizer.chat)
        if pretrained is not None:
            # A parent has these files too, and the first folder may be gone.
            if parent is not None and parent.model_files.is_dir():
                copy_model_files(str(parent.model_files), self.model_files)
            else:
                copy_model_files(pretrained, self.model_files)
            sums = self._pretrained_checksums(config, pretrained) if parent is None else parent.first_weights()
            if sums:
                write_atomically(self.first_weights_file, checksum_lines(sums).encode())
        write_atomically(self.config_file, settings_text(config.model_dump(mode="json")).encode())

    @staticmethod
    def _pretrained_checksums(config: RunConfig, pretrained: str) -> dict[str, str]:
        assert config.stream is not None
        return weight_checksums(pretrained, config.stream.cache)

    def check_first_weights(self) -> None:
        """Refuse to begin again with other pretrained weights than those of the recorded checksums."""
        config = self.config()
        pretrained = config.model.pretrained_from
        if pretrained is not None and self._pretrained_checksums(config, pretrained) != self.first_weights():
            raise UserError(
                f"The weights in {pretrained} are not those that {self} began with, see "
                f"{self.first_weights_file.name}: restore them, or train again into another folder."
            )

    def note_environment(self, step: int) -> dict[str, str]:
        """Record the environment with which the run is resumed. Returns the versions that have changed."""
        with reading(self.environment_file):
            first = json.loads(self.environment_file.read_text(encoding="utf-8"))
            later = list(first.get("resumed", []))
            now = describe_environment()
            changed = changes_since(later[-1] if later else first, now)
        if changed:
            content = {**first, "resumed": [*later, {"step": step, **now}]}
            write_atomically(self.environment_file, json.dumps(content, indent=2).encode())
        return changed

    def binding(self, metrics_log: MetricsLog) -> Binding:
        """The settings, data and metrics log to which checkpoints of this run belong."""
        return Binding(learning_hash(self.config_file), self.data()["fingerprint"], metrics_log)

    def _check_binding(self, checkpoint: Checkpoint) -> None:
        if checkpoint.run:  # a checkpoint that was saved outside of a run has none
            check_binding(checkpoint, self.config_file, self.data_file, self.data()["fingerprint"], self.metrics_file)
