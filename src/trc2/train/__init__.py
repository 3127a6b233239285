"""The trainer: one page of loop, and what it needs around it."""
