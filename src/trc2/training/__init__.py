"""The trainer: the loop, the state of a run, evaluation, resume."""
