"""What is told about a run, to whom, and when."""

from __future__ import annotations

import time

from trc2.runs.records import Record
from trc2.train.observers import Observer


class Story:
    """Hands records to observers, keeps the evaluations among them, and knows how long the run has taken."""

    def __init__(self, observers: list[Observer]) -> None:
        self.observers = observers
        self.evaluations: list[Record] = []
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the run began, over all of its processes."""
        return time.monotonic() - self._begun

    def tell(self, record: Record) -> None:
        if record.kind == "eval":
            self.evaluations.append(record)
        for observer in self.observers:
            observer.see(record)

    def go_on(self, records: list[Record], seconds: float) -> None:
        """Continue one that was told up to here, in so many seconds."""
        self.evaluations = [record for record in records if record.kind == "eval"]
        self._begun = time.monotonic() - seconds

    def close(self) -> None:
        for observer in self.observers:
            observer.close()
