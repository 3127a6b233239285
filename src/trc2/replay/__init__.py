"""Replay: two stores of token chunks."""
