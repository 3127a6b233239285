"""All checks in order, and their report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from trc2.backbones.shell import Backbone
from trc2.errors import UserError
from trc2.system.files import finite
from trc2.verify import causality, coverage, deferral, persistence, recall, replay
from trc2.verify.check import Check, CheckFunction, ModelUnderTest

CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("A", causality.eval_forward),
    ("A", causality.eval_gradient),
    ("A", causality.prefix_consistency),
    ("A", causality.decoding_in_pieces),
    ("A", causality.padding_is_nothing),
    ("A", causality.train_forward_before_flush),
    ("A1", causality.write_scores),
    ("B", deferral.no_effect_before_flush),
    ("B", deferral.evaluation_clears_without_committing),
    ("B", deferral.flush_order_under_accumulation),
    ("C", persistence.memory_persists),
    ("D", replay.counts),
    ("D", replay.never_the_current_batch),
    ("E", coverage.target_layout),
    ("E", coverage.graph_coverage),
    ("F", recall.reads_the_past_only),
    ("F", recall.reads_what_was_committed),
)
CRASHES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
GROUPS = {
    "A": "causality of the logits",
    "A1": "causality of the write scores",
    "B": "pending writes and evaluation",
    "C": "persistence of memory",
    "D": "replay stores",
    "E": "target layout and graph coverage",
    "F": "recall of stored text",
    "G": "on a device",
}


@dataclass(frozen=True)
class Report:
    """The verdict on one model."""

    model: str
    num_parameters: int
    seed: int
    batch: int
    length: int
    seconds: float
    checks: tuple[Check, ...]

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.passed is False]

    @property
    def passed(self) -> bool:
        return not self.failed

    def to_json(self) -> dict[str, Any]:
        checks = [
            {**asdict(check), "measured": finite(check.measured), "passed": check.passed} for check in self.checks
        ]
        return {**asdict(self), "schema": 1, "passed": self.passed, "checks": checks}


def run_checks(
    model: Backbone, name: str = "model", seed: int = 0, watch: Callable[[str], None] = lambda _: None
) -> Report:
    """Put a model through every check. `watch` is called with the name of each before it runs."""
    tested = ModelUnderTest(model, seed)
    start = time.monotonic()
    checks: list[Check] = []
    for group, function in CHECKS:
        title = function.__name__.replace("_", " ")
        watch(title)
        try:
            checks += function(tested)
        except UserError:
            raise
        except CRASHES as error:  # a model broken badly enough to crash has failed, it the other checks still run
            note = f"crashed: {type(error).__name__} {str(error).splitlines()[0] if str(error) else ''}"
            checks.append(Check(group, title, "runs at all", float("nan"), "==", 0.0, note))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    seconds = time.monotonic() - start
    return Report(name, parameters, seed, tested.batch, tested.length, seconds, tuple(checks))
