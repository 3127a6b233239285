"""The process and its surroundings: files, terminal, machine, randomness, plug-ins, and where tests may kill."""
