"""What a run folder is: every file name once, records, checkpoints, the lock, the plan."""
