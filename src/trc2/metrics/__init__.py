"""What is measured: language, text overlap, and forgetting. Pure functions."""
