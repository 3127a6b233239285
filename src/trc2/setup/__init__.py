"""Before a run: a recipe that fits text, machine and time (`trc2 init`), and what the machine has (`trc2 doctor`)."""
