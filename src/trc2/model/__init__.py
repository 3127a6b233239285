"""The parts of the paper, one file each."""
