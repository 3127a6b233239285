"""The paper's causality and state semantics, as checks that any model can be put through."""

from trc2.verify.all_checks import Report, run_battery
from trc2.verify.check import Check, Subject

__all__ = ["Check", "Report", "Subject", "run_battery"]
