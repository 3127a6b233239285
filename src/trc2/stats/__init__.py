"""What repeated runs allow to be said: intervals, paired tests, equivalence. Pure functions; see docs/statistics.md."""
