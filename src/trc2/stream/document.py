"""Documents, and the rows that could not become one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MAX_EXAMPLES = 5
DUPLICATE = "duplicate"


@dataclass(frozen=True)
class Document:
    text: str
    where: str


@dataclass
class BadRows:
    """Rows that were skipped: how many of each kind, and where the first ones are."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, where: str) -> None:
        self.counts[kind] += 1
        places = self.examples.setdefault(kind, [])
        if len(places) < MAX_EXAMPLES:
            places.append(where)

    def total(self) -> int:
        """Rows with a fault; exact duplicates are left out of the packing too, but they are no fault."""
        return sum(count for kind, count in self.counts.items() if kind != DUPLICATE)

    def to_json(self) -> dict[str, object]:
        return {kind: {"rows": count, "first": self.examples[kind]} for kind, count in sorted(self.counts.items())}

    def sentence(self) -> str:
        """What was skipped and where to look, for people."""
        kinds = [(kind, count) for kind, count in self.counts.most_common() if kind != DUPLICATE]
        parts = [f"{count} {kind} (first at {self.examples[kind][0]})" for kind, count in kinds]
        hint = " If the text has another encoding, name it by the task's encoding, e.g. latin-1."
        is_coded = any(kind.startswith("invalid ") for kind, _ in kinds)
        skipped = "1 row was" if self.total() == 1 else f"{self.total()} rows were"
        return f"{skipped} skipped: " + ", ".join(parts) + "." + hint * is_coded
