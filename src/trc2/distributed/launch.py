"""Starting several processes of this command on one machine, as torchrun does."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trc2.distributed.join import RankLost


def launch(arguments: Sequence[str], nproc: int, max_restarts: int = 0) -> int:
    """Run `trc2 ARGUMENTS` in `nproc` processes until they end, and return their exit code."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=f"trc2-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "trc2", *arguments)
    except ChildFailedError as failed:
        _, failure = failed.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        if failure.local_rank > 0:  # the first process has reported the loss
            return RankLost.exit_code
        raise RankLost(
            f"The first process of this run was killed by signal {-failure.exitcode} "
            f"({signal.strsignal(-failure.exitcode)}): go on with `trc2 resume`, or let --max-restarts start it again."
        ) from None
    except SignalException:
        return 130
    return 0
