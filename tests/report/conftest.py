"""An invented lab of nine variants, read once for all tests of reports."""

from __future__ import annotations

import pytest

from tests.report.invented import invent_run
from trc2.report.runs import RunTable, read_runs

VARIANTS = {
    "full": ("lab_trc2", []),
    "no_memory": ("lab_trc2", ["model.memory=false"]),
    "no_replay": ("lab_trc2", ["model.replay=false"]),
    "backbone": ("lab_trc2", ["model.thalamus=false", "model.memory=false", "model.replay=false"]),
    "transformer": ("lab_transformer", []),
    "transformer_replay": ("lab_transformer", ["strategy=replay_controlled"]),
    "transformer_ewc": ("lab_transformer", ["strategy=ewc"]),
    "repeat": ("lab_trc2", ["model.replay_seed={draws}"]),
}


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> RunTable:
    """Two seeds of seven variants, an A/A repeat, a joint reference, and two variants in a second order."""
    root = tmp_path_factory.mktemp("lab")
    for name, (recipe, overrides) in VARIANTS.items():
        for seed in (0, 1):
            chosen = [override.format(draws=1000 + seed) for override in overrides]
            invent_run(root / f"{name}_s{seed}", recipe, [*chosen, f"train.seed={seed}"])
    for name in ("full", "no_replay"):
        recipe, overrides = VARIANTS[name]
        invent_run(root / f"{name}_reversed", recipe, [*overrides, "stream.order=[gsm8k,wikitext,c4]"])
    invent_run(root / "joint", "lab_joint", forgets=0.0)
    return read_runs([root])
