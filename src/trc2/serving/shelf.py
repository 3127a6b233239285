"""The versions that can be asked: which one `latest` is, and which are in memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from trc2.backbones.shell import Backbone
from trc2.errors import UserError
from trc2.runs.folder import Warn
from trc2.runs.target import find_target
from trc2.serving.chat import ChatTemplate, read_template
from trc2.serving.engine import Engine
from trc2.serving.wire import ApiError
from trc2.stream.tokenizer import Tokenizer

LATEST = "latest"
NAME_DIGITS = 12


@dataclass(frozen=True)
class Choice:
    """A version that can be asked for by its name."""

    name: str
    folder: Path
    created: int


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

    def latest(self) -> str:
        """The name of the version that answers by default."""


class OneModel:
    """A run folder or a saved model: one version, which stays the latest."""

    def __init__(self, folder: Path) -> None:
        target = find_target(str(folder))
        if target.folder is None:
            raise UserError(f"'{folder}' is a recipe, which has no weights yet: name a run folder or a saved model.")
        self.choice = Choice(folder.resolve().name or "model", folder, int(folder.stat().st_mtime))

    def choices(self) -> list[Choice]:
        return [self.choice]

    def latest(self) -> str:
        return self.choice.name


def fingerprint(net: Backbone, tokenizer: Tokenizer) -> str:
    """A hash of the weights and the tokenizer in memory. A file may have been replaced since it was read."""
    content = hashlib.sha256(tokenizer.fingerprint().encode())
    for name, tensor in sorted(net.state_dict().items()):
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:NAME_DIGITS]


@dataclass
class Shelf:
    """The versions in memory: `latest` and a few that were asked for by name.

    All methods but `load` are called on the event loop, so a request finds an engine and begins in it in one step.
    """

    source: Source
    max_rows: int = 8
    max_loaded: int = 2
    warn: Warn = lambda _: None
    _models: OrderedDict[str, ServedModel] = field(default_factory=OrderedDict)
    _loading: dict[str, asyncio.Task[ServedModel]] = field(default_factory=dict)

    def choices(self) -> list[Choice]:
        return self.source.choices()

    @property
    def loaded(self) -> list[ServedModel]:
        return list(self._models.values())

    def resolve(self, name: str) -> Choice:
        """The version of a name; `latest` is the one that is accepted now."""
        wanted = self.source.latest() if name == LATEST else name
        for choice in self.choices():
            if choice.name == wanted:
                return choice
        known = ", ".join([LATEST, *(choice.name for choice in self.choices()[-5:])])
        raise ApiError(
            404, f"There is no model of the name that was given: ask for one of {known}.", param="model",
            code="model_not_found",
        )  # fmt: skip

    async def model(self, name: str) -> ServedModel:
        """A version in memory; it is loaded in a thread if it is not there yet."""
        choice = self.resolve(name)
        if choice.name in self._models:
            self._models.move_to_end(choice.name)
            return self._models[choice.name]
        if choice.name not in self._loading:
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(self.load, choice))
            task.add_done_callback(lambda done: self._put(choice.name, done))
            self._loading[choice.name] = task
        return await asyncio.shield(self._loading[choice.name])

    def load(self, choice: Choice) -> ServedModel:
        """Read a version from its folder."""
        net, tokenizer = find_target(str(choice.folder)).trained_model(self.warn)
        name = f"{choice.name}@{fingerprint(net, tokenizer)}"
        engine = Engine(net, tokenizer, name=choice.name, max_rows=self.max_rows)
        return ServedModel(choice, name, engine, read_template(choice.folder, tokenizer))

    def _put(self, name: str, done: asyncio.Task[ServedModel]) -> None:
        """Keep what was loaded, and put away what was not asked for the longest time."""
        del self._loading[name]
        if done.cancelled() or done.exception() is not None:
            return
        self._models[name] = done.result()
        latest = self.source.latest()
        others = [one for one in self._models if one not in (latest, name)]
        for old in others[: max(0, len(self._models) - self.max_loaded)]:
            self._models.pop(old).engine.close()

    def close(self) -> None:
        """Put all versions away; requests that have begun are finished."""
        for model in self._models.values():
            model.engine.close()
        self._models.clear()
