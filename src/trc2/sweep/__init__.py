"""Many runs from one matrix: which, where they stand, who carries them out."""
