"""Language models: the shell all share, TRC² and the seven the paper compares with, one file each."""
