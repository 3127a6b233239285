"""Whether two runs are the same: which settings change what is learnt, and in which ones repetitions differ."""

from __future__ import annotations

from typing import Any

from trc2.config import RunConfig
from trc2.config.flat import flat, is_within

# Free to change on resume: where the data lies is not what it says, the fingerprint guards that.
EXECUTION = ("output", "stream.cache", "stream.data_root")
# In which repetitions of one variant differ.
REPETITION = ("train.seed", "stream.order")


def learning_settings(config: RunConfig) -> dict[str, Any]:
    """Every setting that changes what is learnt, by its path."""
    values = flat(config.model_dump(mode="json"))
    return {path: value for path, value in values.items() if not is_within(path, EXECUTION)}


def variant_settings(config: RunConfig) -> dict[str, Any]:
    """The same without seed and order: equal for all repetitions of a variant.

    A replay seed counts as its distance from the run's seed.
    """
    values = {path: value for path, value in learning_settings(config).items() if not is_within(path, REPETITION)}
    if values.get("model.replay_seed") is not None:
        values["model.replay_seed"] -= config.train.seed
    return values


def differences(a: RunConfig, b: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The learning settings in which two runs differ: both values by path; None where a run lacks the setting."""
    old, new = learning_settings(a), learning_settings(b)
    return {
        path: (old.get(path), new.get(path))
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    }  # fmt: skip


def is_same_run(a: RunConfig, b: RunConfig) -> bool:
    """Whether both would learn the same, wherever they are written and their data lies."""
    return not differences(a, b)
