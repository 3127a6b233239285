"""Hands the records of a run to its observers."""

from __future__ import annotations

import math
import time

from trc2.runs.records import Record
from trc2.training.efficiency import PEAK_MEMORY
from trc2.training.observers import Observer


class Story:
    """Hands records to observers, keeps the evaluations among them, and knows what the run has taken so far."""

    def __init__(self, observers: list[Observer]) -> None:
        self.observers = observers
        self.evaluations: list[Record] = []
        self.peak_memory_gb = 0.0  # the most that any of its processes has recorded
        self.last_speed = math.nan  # tokens per second of the last step
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the run began, over all of its processes."""
        return time.monotonic() - self._begun

    def tell(self, record: Record) -> None:
        self._note(record)
        for observer in self.observers:
            observer.see(record)

    def go_on(self, records: list[Record], seconds: float) -> None:
        """Continue a run that has made these records and has taken so many seconds."""
        self.evaluations = []
        for record in records:
            self._note(record)
        self._begun = time.monotonic() - seconds

    def _note(self, record: Record) -> None:
        if record.kind == "eval":
            self.evaluations.append(record)
        if record.kind == "train":
            self.last_speed = record.metrics.get("train/tokens_per_second", self.last_speed)
        self.peak_memory_gb = max(self.peak_memory_gb, record.metrics.get(PEAK_MEMORY, 0.0))

    def close(self) -> None:
        for observer in self.observers:
            observer.close()
