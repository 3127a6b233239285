"""The `trc2` command as a worker of torchrun, whose last rank is killed in a step, the first time it is started."""

from __future__ import annotations

import os

if __name__ == "__main__":
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if is_last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.environ["TRC2_KILL_AT"] = os.environ["DOOM"]
    from trc2.cli import main

    main()
