"""Analyses of committed runs: each study reads run folders through `trc2.report` and argues one question."""
