"""The seven backbones the paper compares with, one file each, in the shell they share with TRC²."""
