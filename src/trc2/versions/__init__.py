"""Accepted models over time: whole folders, one table of events, and the way back."""
