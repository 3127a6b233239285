"""The other side of `trc2 serve`, for commands: upload, teach, follow, list and move versions.

It needs nothing but the standard library, so a machine that only sends documents does not need the extra `serve`.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from trc2.errors import UserError, brief, did_you_mean
from trc2.serving.auth import Right, includes, read_secrets

VARIABLE = "TRC2_TOKEN"
TIMEOUT_SECONDS = 600  # a version is loaded, or a large file is checked, before the answer comes
LOST_SECONDS = 120  # for which a server may be away while its job is followed, for example to start again
POLL_SECONDS = 1.0
MAX_WAITS, MAX_WAIT_SECONDS = 10, 30
CHUNK = 2**16


class ServerLost(UserError):
    """The server went away while its job was followed. The job is not lost."""

    exit_code = 1


class Refused(UserError):
    """An answer that is an error."""

    def __init__(self, sentence: str, status: int, code: str | None) -> None:
        super().__init__(sentence)
        self.status, self.code = status, code


class Unreachable(UserError):
    """No answer."""


def is_url(name: str) -> bool:
    return name.lower().startswith(("http://", "https://"))


def find_token(tokens: Path | None, right: Right) -> str | None:
    """The token of the environment variable TRC2_TOKEN, or the first of a server's own file that has enough rights."""
    if tokens is None:
        return os.environ.get(VARIABLE) or None
    for token in read_secrets(tokens):
        if includes(token.right, right):
            return token.secret
    raise UserError(f"{tokens} has no token with the right '{right}': add one, or name another file.")


class Client:
    """A server by its address, such as http://127.0.0.1:8000."""

    def __init__(self, url: str, token: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            self.host, self.port = parts.hostname or "", parts.port
        except ValueError:
            self.host = ""
        if not self.host or not is_url(url) or parts.query or parts.fragment or parts.username:
            raise UserError(f"{url} is not the address of a server: write it as http://HOST:PORT.")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UserError(f"The token in {VARIABLE} has signs that no token has: copy it again.")
        self.is_secure = parts.scheme.lower() == "https"
        self.path = parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{self.path}"
        self.token = token

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def post(self, path: str, body: object) -> Any:
        return self._ask("POST", path, {"content-type": "application/json"}, lambda: [json.dumps(body).encode()])

    def upload(self, path: Path, filename: str) -> Any:
        """Send a file as it is read, without holding it in memory."""
        boundary = secrets.token_hex(16)
        label = "".join(sign for sign in filename if sign.isprintable() and sign not in '"\\')
        head = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
            f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{label}"\r\n'
            "content-type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        size = path.stat().st_size
        headers = {
            "content-type": f"multipart/form-data; boundary={boundary}",
            "content-length": str(len(head) + size + len(tail)),
        }

        def body() -> Iterator[bytes]:
            yield head
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
            yield tail

        return self._ask("POST", "/v1/files", headers, body)

    def _ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: Callable[[], Iterable[bytes]] | None = None,
    ) -> Any:
        """The answer as JSON. A server that is busy is asked again when it says so."""
        headers = {"accept": "application/json", **(headers or {})}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        for waited in range(MAX_WAITS + 1):
            status, wait, text = self._send(method, path, headers, body)
            if status != 429 or waited == MAX_WAITS:
                break
            time.sleep(min(wait, MAX_WAIT_SECONDS))
        try:
            content = json.loads(text)
        except ValueError:
            raise UserError(f"{self.url} answers, but not as `trc2 serve` does: check the address.") from None
        if status == 200:
            return content
        error = content.get("error") if isinstance(content, dict) else None
        if not isinstance(error, dict):
            raise UserError(f"{self.url} answers {status}, but not as `trc2 serve` does: check the address.")
        if status == 401:
            sentence = f"{self.url} needs a token: put it into {VARIABLE}, or name a file with it by --tokens."
            raise Refused(sentence, status, error.get("code"))
        raise Refused(str(error.get("message")), status, error.get("code"))

    def _send(
        self, method: str, path: str, headers: dict[str, str], body: Callable[[], Iterable[bytes]] | None
    ) -> tuple[int, float, bytes]:
        """Status, seconds to wait, and body of an answer."""
        connection: http.client.HTTPConnection
        if self.is_secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_SECONDS, context=context)
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS)
        try:
            if body is not None and "content-length" not in headers:
                parts = list(body())
                headers = {**headers, "content-length": str(sum(map(len, parts)))}
            # A broken pipe means that it has answered already, for example that the file is too large.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, f"{self.path}{path}", None if body is None else iter(body()), headers)
            answer = connection.getresponse()
            wait = answer.getheader("retry-after") or "1"
            return answer.status, float(wait) if wait.isdigit() else 1.0, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                f"No server answers at {self.url} ({brief(error)}): start it by `trc2 serve`, or check the address."
            ) from None
        finally:
            connection.close()

    # ------------------------------------------------------------------------------------------------------- teaching

    def follow(self, identity: str, see: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Wait for the end of a job. `see` gets its state again and again. A server that starts again is waited for."""
        last_answer = time.monotonic()
        while True:
            try:
                job = dict(self.get(f"/v1/fine_tuning/jobs/{quote(identity, safe='')}"))
            except Unreachable:
                if time.monotonic() - last_answer > LOST_SECONDS:
                    raise ServerLost(
                        f"The server at {self.url} did not come back: start it again, it goes on with {identity}."
                    ) from None
            else:
                last_answer = time.monotonic()
                see(job)
                if job["status"] in ("succeeded", "failed", "cancelled"):
                    return job
            time.sleep(POLL_SECONDS)

    # ------------------------------------------------------------------------------------------------------- versions

    def versions(self) -> list[dict[str, Any]]:
        """All versions, newest first."""
        return list(self.get("/v1/versions")["data"])

    def version(self, name: str) -> dict[str, Any]:
        return dict(self.get(f"/v1/versions/{quote(name, safe='')}"))

    def promote(self, name: str, reason: str) -> dict[str, Any]:
        names = [str(version["id"]) for version in self.versions()]
        number = name.lstrip("0")
        match = [one for one in names if one == name] or [
            one for one in names if number.isdecimal() and one.split("-")[0].lstrip("0") == number
        ]
        if not match:
            raise UserError(f"{self.url} has no version '{brief(name)}': {did_you_mean(name, names)}")
        return dict(self.post(f"/v1/versions/{quote(match[0], safe='')}/promote", {"reason": reason}))

    def rollback(self, reason: str) -> dict[str, Any]:
        return dict(self.post("/v1/versions/rollback", {"reason": reason}))
