"""Statistics over repeated runs: intervals, paired tests and equivalence, as pure functions; see docs/statistics.md."""
