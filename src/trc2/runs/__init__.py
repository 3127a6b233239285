"""What a run folder is: file names, records, checkpoints, the lock and the schedule of tasks."""
