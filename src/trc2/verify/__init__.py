"""The paper's causality and state semantics, as checks that any model can be put through."""

from trc2.verify.all_checks import Report, run_checks
from trc2.verify.check import Check, ModelUnderTest

__all__ = ["Check", "ModelUnderTest", "Report", "run_checks"]
