"""Everything behind `trc2 continue`: new tasks for a finished run or a saved model, and the acceptance check."""
