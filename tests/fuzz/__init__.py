"""Hostile input for every command: seeded cases, run through the real border, judged by rules that never bend.

`python -m tests.fuzz --cases 2000` runs them; `--only 17` runs one of them again and shows all of it.

- `values`: words, numbers, paths and settings nobody should give
- `damage`, `forge`: what can happen to a file or a folder, and lies whose checksums are right
- `world`: the small data, runs and models that cases start from
- `cases`, `kinds`: how a number becomes a case, and which command or function gets what
- `border`, `functions`: one case, run in this process
- `judge`: the rules
- `server`, `guard`: cases in forked children that can write nowhere else, so that a crash or a hang costs one case
"""
