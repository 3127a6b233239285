"""Commands as tasks of a Ray cluster. Folder, data and cache must be on a disk that all its nodes share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from trc2.errors import UserError
from trc2.sweep.local_launcher import command, environment, open_log


def connect() -> Any:
    """Ray, connected to the cluster that RAY_ADDRESS names, or to a local one."""
    ray = import_ray()
    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, configure_logging=False)
    return ray


def import_ray() -> Any:
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise UserError("--launcher ray needs Ray: install it with `pip install '.[ray]'` in the checkout.") from None


class RayLauncher:
    """One Ray task per run, which holds as many of the cluster's cores as the run has threads."""

    most_threads = None  # Ray waits until a node has as many cores free

    def __init__(self, jobs: int, threads: int) -> None:
        self.ray = ray = connect()
        self.slots, self.threads = jobs, threads
        self.running: dict[str, Any] = {}
        self.work = ray.remote(max_retries=0)(carry_out)

    def start(self, name: str, arguments: list[str], threads: int, log: Path) -> None:
        work = self.work.options(num_cpus=threads)
        self.running[name] = work.remote(arguments, str(log.resolve()), threads, os.getcwd())

    def ended(self) -> dict[str, int]:
        names = {reference: name for name, reference in self.running.items()}
        ready, _ = self.ray.wait(list(names), num_returns=len(names), timeout=0) if names else ([], [])
        done = {names[reference]: self._code(reference) for reference in ready}
        for name in done:
            del self.running[name]
        return done

    def _code(self, reference: Any) -> int:
        """A worker that was lost, e.g. with its node, counts as killed: `--retry` goes on with the run."""
        try:
            return int(self.ray.get(reference))
        except self.ray.exceptions.RayError:
            return -signal.SIGKILL

    def stop(self) -> None:
        for reference in self.running.values():
            self.ray.cancel(reference)  # a KeyboardInterrupt inside `carry_out`
        if self.running:
            self.ray.wait(list(self.running.values()), num_returns=len(self.running))
        self.running.clear()


def carry_out(arguments: list[str], log: str, threads: int, folder: str) -> int:
    """On some node: run the command, and hand a cancellation on as a request to save and stop."""
    with open_log(Path(log), arguments) as out:
        process = subprocess.Popen(
            command(arguments), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder,
            env=environment(threads),
        )  # fmt: skip
        return _wait_for(process)


def _wait_for(process: subprocess.Popen[bytes]) -> int:
    try:
        while (code := process.poll()) is None:
            time.sleep(0.1)  # not wait(): Ray's cancellation is heard between Python's steps only
        return code
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise


# ------------------------------------------------------------------------------------------------------ one command


def run_on_cluster(nproc: int, command: list[str]) -> None:
    """Run a command on some node in the place of this process, which ends as the command does.

    The node writes the files `stdout` and `stderr` of the current folder. A signal is handed on as a request to save
    and stop. A node that is lost looks like a process that was killed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ray = connect()
    gpus = nproc if ray.cluster_resources().get("GPU") else 0
    work = ray.remote(max_retries=0)(carry_out_here).options(num_cpus=nproc, num_gpus=gpus)
    reference = work.remote(command, os.getcwd())
    try:
        while not ray.wait([reference], timeout=0.2)[0]:
            pass
        code = int(ray.get(reference))
    except KeyboardInterrupt:
        ray.cancel(reference)
        ray.wait([reference])
        code = 130
    except ray.exceptions.RayError:
        code = -signal.SIGKILL
    if code < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def carry_out_here(command: list[str], folder: str) -> int:
    """On some node: run a command in a folder, with its output in files there."""
    with (Path(folder) / "stdout").open("ab") as out, (Path(folder) / "stderr").open("ab") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder)
        return _wait_for(process)
