"""The versions that can be asked: which one `latest` is, and which are in memory."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from trc2.backbones.shell import Backbone
from trc2.errors import UserError, sentence_of
from trc2.runs.folder import Warn
from trc2.runs.target import find_target
from trc2.serving.chat import ChatTemplate, read_template
from trc2.serving.engine import Engine
from trc2.serving.wire import ApiError
from trc2.stream.tokenizer import Tokenizer
from trc2.versions.entry import Version
from trc2.versions.registry import Versions, is_versions

LATEST = "latest"
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds before a version that could not be read is read again
NAME_DIGITS = 12


@dataclass(frozen=True)
class Choice:
    """A version that can be asked for by its name. The name of an entry of a versions folder has a hash in it."""

    name: str
    folder: Path
    created: int
    version: Version | None = None


@dataclass(frozen=True)
class Unreadable:
    """A version that could not be read: the reason, and the time of the next attempt."""

    sentence: str
    wait: float
    until: float


@dataclass(frozen=True)
class ServedModel:
    """A version in memory. `fingerprint` is its name, followed by a hash of its weights unless the name has one."""

    choice: Choice
    fingerprint: str
    engine: Engine
    template: ChatTemplate | None


class Source(Protocol):
    """Where versions come from."""

    def choices(self) -> list[Choice]:
        """All versions that can be asked for, oldest first."""

    def latest(self) -> Choice:
        """The version that is accepted now."""


class OneModel:
    """A run folder or a saved model: one version, which stays the latest."""

    def __init__(self, folder: Path) -> None:
        target = find_target(str(folder))
        if target.folder is None:
            raise UserError(f"'{folder}' is a recipe, which has no weights yet: name a run folder or a saved model.")
        self.choice = Choice(folder.resolve().name or "model", folder, int(folder.stat().st_mtime))

    def choices(self) -> list[Choice]:
        return [self.choice]

    def latest(self) -> Choice:
        return self.choice


class VersionsFolder:
    """A versions folder. Its table is read again when it has changed, also by another process."""

    def __init__(self, folder: Path) -> None:
        self.versions = Versions(folder)
        self._read: tuple[object, list[Choice], str] | None = None

    def choices(self) -> list[Choice]:
        return self._current()[0]

    def latest(self) -> Choice:
        choices, name = self._current()
        return next(choice for choice in choices if choice.name == name)

    def _current(self) -> tuple[list[Choice], str]:
        state = self.versions.table.stat()  # the table is replaced as a whole
        stamp = (state.st_ino, state.st_mtime_ns, state.st_size)
        if self._read is None or self._read[0] != stamp:
            latest = self.versions.accepted_name()  # before the others: one that is added meanwhile is among them
            choices = [
                Choice(version.name, version.model, version.created_at, version)
                for version in self.versions.all()
                if version.has_model
            ]
            if any(choice.version is not None and choice.version.problem for choice in choices):
                return choices, latest  # read it again: a description can be restored
            self._read = (stamp, choices, latest)
        return self._read[1], self._read[2]


def find_source(folder: Path) -> OneModel | VersionsFolder:
    """A versions folder, a run folder or a saved model."""
    return VersionsFolder(folder) if is_versions(folder) else OneModel(folder)


def fingerprint(net: Backbone, tokenizer: Tokenizer) -> str:
    """A hash of weights, tokenizer and taught documents in memory. A file may have been replaced since it was read."""
    content = hashlib.sha256(tokenizer.fingerprint().encode())
    if net.recall is not None:
        content.update(net.recall.identity.encode())
    for name, tensor in sorted(net.state_dict().items()):
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:NAME_DIGITS]


class Shelf:
    """The versions in memory: the latest one, and a few that were asked for by name.

    All methods but `load` are called on the event loop, so a request finds an engine and begins in it in one step.
    A version that becomes the latest is loaded first. Until then the one before it answers.
    """

    def __init__(self, source: Source, max_rows: int = 8, max_loaded: int = 2, warn: Warn = lambda _: None) -> None:
        self.source, self.max_rows, self.max_loaded, self.warn = source, max_rows, max_loaded, warn
        self.problem: str | None = None  # why the accepted version does not answer
        self._tokens_before = 0  # that versions wrote which are not in memory any more
        self._latest: ServedModel | None = None
        self._models: OrderedDict[str, ServedModel] = OrderedDict()
        self._loading: dict[str, asyncio.Task[ServedModel]] = {}
        self._unreadable: dict[str, Unreadable] = {}
        self._one_load = asyncio.Lock()
        self._closing: list[Engine] = []  # that still write answers

    def choices(self) -> list[Choice]:
        return self.source.choices()

    @property
    def latest(self) -> ServedModel:
        """The version that answers by default."""
        assert self._latest is not None, "refresh() loads it before the first request"
        return self._latest

    @property
    def loaded(self) -> list[ServedModel]:
        return list(self._models.values())

    @property
    def tokens_made(self) -> int:
        return self._tokens_before + sum(model.engine.tokens_made for model in self.loaded)

    def resolve(self, name: str) -> Choice:
        """The version of a name. `latest` is the one that answers by default."""
        if name == LATEST:
            return self.latest.choice
        for choice in self.choices():
            if choice.name == name:
                return choice
        known = ", ".join([LATEST, *(choice.name for choice in self.choices()[-5:])])
        raise ApiError(
            404, f"There is no model of the name that was given: ask for one of {known}.", param="model",
            code="model_not_found",
        )  # fmt: skip

    async def model(self, name: str) -> ServedModel:
        """A version in memory. It is loaded in a thread if it is not there yet."""
        choice = self.resolve(name)
        if choice.name in self._models:
            self._models.move_to_end(choice.name)
            return self._models[choice.name]
        if choice.name not in self._loading:
            failed = self._unreadable.get(choice.name)
            if failed is not None and time.monotonic() < failed.until:  # reading it again would cost all its bytes
                raise UserError(failed.sentence)
            task = asyncio.get_running_loop().create_task(self._load_alone(choice))
            task.add_done_callback(lambda done: self._put(choice.name, done))
            self._loading[choice.name] = task
        return await asyncio.shield(self._loading[choice.name])

    async def refresh(self, *, at_once: bool = False) -> ServedModel:
        """Make the accepted version the one that answers by default, as soon as it is in memory.

        `at_once` tries also if the version could not be read a moment ago.
        """
        while self._latest is None or self._latest.choice.name != (await self._accepted()):
            name = await self._accepted()
            if at_once:
                self._unreadable.pop(name, None)
            model = await self.model(name)
            is_accepted = name == await self._accepted()  # another may have been accepted while this one was read
            if is_accepted and self._models.get(name) is model:  # and this one may have been put away since
                self._latest = model
                self._put_away()
        self.problem = None
        return self._latest

    async def _accepted(self) -> str:
        return (await asyncio.to_thread(self.source.latest)).name

    async def watch(self, seconds: float = 1.0) -> None:
        """Follow changes of the source for ever. A version that cannot be read leaves the one before it in place."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.refresh()
            except Exception as error:
                problem = sentence_of(error) or f"The accepted version cannot be read ({type(error).__name__})."
                if problem != self.problem:
                    self.warn(problem)
                self.problem = problem

    async def _load_alone(self, choice: Choice) -> ServedModel:
        """One version at a time, after those that were put away are gone: `max_loaded` bounds the memory."""
        async with self._one_load:
            while self._closing:
                self._closing = [engine for engine in self._closing if not engine.join(0)]
                if self._closing:
                    await asyncio.sleep(0.05)
            return await asyncio.to_thread(self.load, choice)

    def load(self, choice: Choice) -> ServedModel:
        """Read a version from its folder, after its files were compared with their hashes."""
        try:
            if choice.version is not None:
                choice.version.check(("model",))
            net, tokenizer = find_target(str(choice.folder)).trained_model(self.warn)
            template = read_template(choice.folder, tokenizer)
        except UserError as error:  # clients need not know where the folder is
            raise UserError(str(error).replace(f"{choice.folder.parent}/", "")) from None
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.data = tensor.data.clone()  # weights that stay mapped would follow later changes of the file
        name = choice.name if choice.version is not None else f"{choice.name}@{fingerprint(net, tokenizer)}"
        engine = Engine(net, tokenizer, name=choice.name, max_rows=self.max_rows)
        return ServedModel(choice, name, engine, template)

    def _put(self, name: str, done: asyncio.Task[ServedModel]) -> None:
        """Keep what was loaded."""
        del self._loading[name]
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._unreadable.pop(name, None)
            self._models[name] = done.result()
            self._put_away()
        else:
            before = self._unreadable.get(name)
            wait = FIRST_WAIT if before is None else min(LONGEST_WAIT, 2 * before.wait)
            sentence = sentence_of(error) or f"{name} cannot be read ({type(error).__name__})."
            self._unreadable[name] = Unreadable(sentence, wait, time.monotonic() + wait)

    def _put_away(self) -> None:
        """Close the versions that were not asked for the longest time. They finish the answers that they have begun."""
        latest = None if self._latest is None else self._latest.choice.name
        newest = next(reversed(self._models))
        others = [name for name in self._models if name not in (latest, newest)]
        for old in others[: max(0, len(self._models) - self.max_loaded)]:
            model = self._models.pop(old)
            model.engine.close()
            self._closing.append(model.engine)
            self._tokens_before += model.engine.tokens_made

    def close(self) -> None:
        """Put all versions away. Requests that have begun are finished."""
        for model in self._models.values():
            model.engine.close()
        self._models.clear()
