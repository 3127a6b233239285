"""Who may do what: tokens with rights, and the names under which a server without tokens may be reached."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from trc2.errors import UserError
from trc2.serving.wire import ApiError
from trc2.system.files import reading

Right = Literal["ask", "teach", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)  # each includes those before it
MIN_LENGTH = 16
MAX_CALLERS = 10_000


@dataclass(frozen=True)
class Token:
    """A token by its hash, so that comparing takes the same time whatever it is."""

    name: str
    right: Right
    sha256: bytes


@dataclass(frozen=True)
class Secret:
    """A line of a file with tokens."""

    name: str
    right: Right
    secret: str = field(repr=False)


def read_secrets(path: Path) -> tuple[Secret, ...]:
    """Tokens from a file: on each line a right, the token, and perhaps a name. Lines that begin with # are skipped."""
    secrets = []
    with reading(path, "correct it"):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] not in RIGHTS or len(words) not in (2, 3):
            raise UserError(
                f"Line {number} of {path} is not a token: write a right ({', '.join(RIGHTS)}), the token and a name."
            )
        if len(words[1]) < MIN_LENGTH:
            raise UserError(f"The token in line {number} of {path} is too short: use {MIN_LENGTH} or more characters.")
        name = words[2] if len(words) == 3 else f"line-{number}"
        right = next(right for right in RIGHTS if right == words[0])
        secrets.append(Secret(name, right, words[1]))
    if not secrets:
        raise UserError(f"{path} has no tokens: write at least one line with a right and a token.")
    return tuple(secrets)


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens of a file by their hashes, as the server keeps them."""
    return tuple(Token(one.name, one.right, hashlib.sha256(one.secret.encode()).digest()) for one in read_secrets(path))


@dataclass(frozen=True)
class Caller:
    """Who asks. Without tokens everyone who reaches the server may do everything."""

    name: str
    right: Right


def includes(has: Right, needs: Right) -> bool:
    return RIGHTS.index(has) >= RIGHTS.index(needs)


def find_caller(tokens: tuple[Token, ...], headers: Mapping[str, str], client: str) -> Caller:
    """The caller by the header `Authorization: Bearer TOKEN`."""
    if not tokens:
        return Caller(client, "admin")
    kind, _, given = headers.get("authorization", "").partition(" ")
    given_hash = hashlib.sha256(given.strip().encode()).digest()
    matching = [token for token in tokens if hmac.compare_digest(token.sha256, given_hash)]  # compares all of them
    if kind.lower() != "bearer" or not matching:
        raise ApiError(
            401, "The token is missing or not known: send it as `Authorization: Bearer TOKEN`.", code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )  # fmt: skip
    return Caller(matching[0].name, matching[0].right)


def check_right(caller: Caller, right: Right) -> None:
    if not includes(caller.right, right):
        raise ApiError(
            403, f"The token {caller.name} has the right '{caller.right}', but this needs '{right}': use another.",
            code="insufficient_permissions",
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------- without tokens


def is_local(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_origin(headers: Mapping[str, str], *, has_tokens: bool) -> None:
    """Reject what a foreign web page makes a browser send to a server on the same machine.

    Such a page can use a name of its own that points to 127.0.0.1, or post a form from its own origin.
    """
    host = headers.get("host", "")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if not has_tokens and not is_local(name):
        raise ApiError(403, "This server has no tokens, so it answers to localhost only: use that name.", code="host")
    origin = headers.get("origin")
    if origin is not None and origin.split("://", 1)[-1] != host:
        raise ApiError(403, "The request comes from a page of another site: use the server's own page.", code="origin")


# ------------------------------------------------------------------------------------------------------------- rate


class RateLimit:
    """At most so many requests a minute for each caller. Unused ones add up to those of one minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute, self.clock = per_minute, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller → requests left, time

    def check(self, caller: str) -> None:
        now = self.clock()
        left, then = self._left.pop(caller, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - then) * self.per_minute / 60)
        self._left[caller] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > MAX_CALLERS:
            self._left.popitem(last=False)
        if left < 1:
            seconds = max(1, round((1 - left) * 60 / self.per_minute + 0.5))
            raise ApiError(
                429, f"More than {self.per_minute} requests in a minute: ask again in {seconds} seconds.",
                code="rate_limit_exceeded", headers={"retry-after": str(seconds)},
            )  # fmt: skip
