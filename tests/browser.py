"""Chromium for tests, driven through its own protocol over two pipes, so that no package is needed for it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """A tab of a browser without a window."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from, self._rest, self._number = to_browser, from_browser, b"", 0
        self._session: str | None = None
        self.problems: list[str] = []  # errors and refusals of the browser, such as those of the security policy
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **settings: Any) -> dict[str, Any]:
        """One command, with its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": settings}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._from], [], [], 60)[0], "the browser does not answer"
            part = os.read(self._from, 2**16)
            assert part, "the browser has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(message["params"]["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded":
            entry = message["params"]["entry"]
            if entry["source"] in ("security", "javascript"):
                self.problems.append(entry["text"])
        return message

    def open(self, url: str, width: int = 1100, height: int = 900, *, dark: bool = False) -> None:
        self.resize(width, height)
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=colours)
        self.send("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def run(self, script: str) -> Any:
        """The value of an expression on the page. A promise is waited for."""
        settings = {"returnByValue": True, "awaitPromise": True}
        found = self.send("Runtime.evaluate", expression=script, **settings)
        assert "exceptionDetails" not in found, (script, found["exceptionDetails"])
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 30) -> Any:
        """Wait until an expression is true. A page that is loaded again may lack the elements it names for a moment."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.run(f"(() => {{ try {{ return {condition}; }} catch {{ return false; }} }})()"):
                return value
            time.sleep(0.05)
        raise AssertionError((condition, self.run("document.body.innerText"), self.problems))

    def press(self, key: str, *, shift: bool = False) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        text = {"text": "\r"} if key == "Enter" else {}
        facts: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 * shift}
        self.send("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **facts)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        settings: dict[str, Any] = {"captureBeyondViewport": whole}
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", **settings)["data"]))


@contextmanager
def open_browser(program: str, profile: Path) -> Iterator[Page]:
    to_browser, for_browser = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command = [program, *options, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
    # The browser reads commands from 3 and writes answers to 4.
    script = f'exec "$@" 3<&{to_browser[0]} 4>&{for_browser[1]}'
    inherited = (to_browser[0], for_browser[1])
    process = subprocess.Popen(
        ["bash", "-c", script, "browser", *command], pass_fds=inherited, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for descriptor in inherited:
        os.close(descriptor)
    try:
        yield Page(to_browser[1], for_browser[0])
    finally:
        for descriptor in (to_browser[1], for_browser[0]):
            os.close(descriptor)
        process.terminate()
        process.wait(30)
