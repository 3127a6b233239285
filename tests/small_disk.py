"""A small file system, or where the system does not allow one, its own limit on the size of files."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SmallDisk:
    """A folder in which little can be written, until there is room."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.is_mounted = self._mount("size=8k", "tmpfs")

    def _mount(self, options: str, kind: str | None = None) -> bool:
        command = ["mount", *(["-t", kind] if kind else []), "-o", options, "tmpfs", str(self.folder)]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    def used(self) -> int:
        """Kilobytes. 0 if this is no file system of its own."""
        state = os.statvfs(self.folder)
        return (state.f_blocks - state.f_bfree) * state.f_frsize // 1024 if self.is_mounted else 0

    def unmount(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def clear(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    @contextmanager
    def full(self, kilobytes: int) -> Iterator[None]:
        """Inside, writing more than this fails: in all where this is a file system, else in one file."""
        if self.is_mounted:
            self._mount(f"remount,size={kilobytes}k")
            try:
                yield
            finally:
                self._mount("remount,size=200m")
            return
        earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then the write fails instead
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(1, kilobytes // 8) * 1024, earlier[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, earlier)
            signal.signal(signal.SIGXFSZ, handler)

    @contextmanager
    def read_only(self) -> Iterator[bool]:
        """Whether it is: for root nothing is, except a file system."""
        if self.is_mounted:
            self._mount("remount,ro")
            yield True
            self._mount("remount,rw")
            return
        self.folder.chmod(0o555)
        yield os.geteuid() != 0
        self.folder.chmod(0o755)
