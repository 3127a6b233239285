"""Scoring any model on any text, and on tasks of the lm-evaluation-harness."""
