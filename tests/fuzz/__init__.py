"""Hostile input for every command: seeded cases, run through the real border, judged by fixed rules.

`python -m tests.fuzz --cases 2000` runs them. `--only 17` runs one of them again and shows all of it.

- `values`: words, numbers, paths and settings that are wrong or strange
- `damage`: what can happen to a file, a folder or a checkpoint, also with right checksums
- `world`: the small data, runs and models that cases start from
- `cases`, `kinds`: how a number becomes a case, and which command or function gets what
- `border`, `functions`: one case, run in this process
- `judge`: the rules
- `server`: cases in forked children that can write nowhere else, so that a crash or a hang costs one case
"""
