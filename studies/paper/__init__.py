"""The claims ledger: what the paper says, how we test it, what our runs say, computed from run folders.

    write_claims(Evidence.of([Path("results/lab")]), Path("out"))       # out/claims.md, out/claims.json

The rules are in `ledger`, the paper's numbers in `paper`, the claims one file per group.
"""

from __future__ import annotations

from pathlib import Path

from studies.paper.ablation import ablation_claims
from studies.paper.arithmetic import remarks
from studies.paper.casting import Cast
from studies.paper.dynamics import dynamics_claims
from studies.paper.ledger import Claim, Ruling
from studies.paper.rendering import Ledger, Section, as_json, as_markdown
from studies.paper.retention import primary_claim, retention_claims
from studies.paper.shuffles import shuffle_claims
from studies.paper.throughput import throughput_claims
from studies.paper.unasked import distances, open_claims
from trc2.files import write_atomically
from trc2.report.evidence import Evidence

__all__ = ["Claim", "Ledger", "Ruling", "claims_of", "write_claims"]


def claims_of(evidence: Evidence) -> Ledger:
    """Every claim with its verdict; on partial evidence most are undecided or not testable, and say why."""
    cast = Cast(evidence)
    sections = (
        Section("TRC² against the baselines", (primary_claim(cast), *retention_claims(cast))),
        Section("Lesions", tuple(ablation_claims(cast))),
        Section("Orders", tuple(shuffle_claims(cast))),
        Section("Inside a run", tuple(dynamics_claims(cast))),
        Section("Cost, and what no run decides", tuple(throughput_claims(cast))),
        Section("What the paper leaves open", tuple(open_claims(cast))),
    )
    return Ledger(cast, sections, tuple(distances(cast)), tuple(remarks(cast)))


def write_claims(evidence: Evidence, folder: Path) -> list[Path]:
    """claims.md and claims.json; returns what was written."""
    ledger = claims_of(evidence)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "claims.md", folder / "claims.json"]
    for path, text in zip(written, (as_markdown(ledger), as_json(ledger)), strict=True):
        write_atomically(path, text.encode())
    return written
