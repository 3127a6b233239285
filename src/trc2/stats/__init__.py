"""Statistics over repeated runs: intervals, paired tests and equivalence, as pure functions. See docs/statistics.md."""
