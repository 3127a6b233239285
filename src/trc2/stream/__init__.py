"""Tasks and their text: sources, tokenizer, packed shards, and batches that are functions of (seed, task, step)."""
