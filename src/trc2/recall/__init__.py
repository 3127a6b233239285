"""Stored documents that a model reads while it predicts: counts, store, gate, and the reader that joins them."""

FOLDER, FILE = "recall", "store.safetensors"  # of a saved model
