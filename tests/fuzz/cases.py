"""A case, how its parts are drawn, and how a number becomes one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.damage import HOWS
from tests.fuzz.values import LONG_BY_RIGHT, MALFORMED, TASKS, as_json, numbers, values, weighted, words
from tests.fuzz.world import World

Strategy = st.SearchStrategy[Any]
BUFFER = 2048  # bytes that hypothesis turns into one case


@dataclass(frozen=True)
class Damage:
    """Something that happened to a file before the command began."""

    path: str
    how: str
    seed: int


@dataclass(frozen=True)
class Case:
    """A command line (or a function's arguments), the parts of the world it finds, and what happened to them."""

    kind: str
    argv: tuple[str, ...]
    parts: tuple[str, ...] = ()
    damage: tuple[Damage, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    index: int = field(default=-1, compare=False)

    @property
    def is_call(self) -> bool:
        """Whether it goes to a function below the commands. Those have names with an underscore."""
        return "_" in self.kind

    @property
    def is_spoilt(self) -> bool:
        """Whether a checkpoint is wrong although its checksums are right: training it fails or differs, by right."""
        return any(damage.how in ("forged", "no numbers") for damage in self.damage)


@dataclass(frozen=True)
class Kind:
    """Cases of one sort. `weight` is their share among all cases, in thousandths or so."""

    name: str
    weight: int
    strategy: st.SearchStrategy[Case]


class Cases:
    """Case number n of a seed is always the same, whatever ran before it."""

    def __init__(self, kinds: Sequence[Kind], seed: int) -> None:
        self.kinds, self.seed = kinds, seed
        self._made: list[Case] = []
        self._draws = {kind.name: self._draw_from(kind.strategy) for kind in kinds}

    def __getitem__(self, index: int) -> Case:
        rng = random.Random(f"{self.seed}/{index}")
        kind = rng.choices(self.kinds, [kind.weight for kind in self.kinds])[0]
        self._made.clear()
        while not self._made:  # some buffers are too short for what they begin
            self._draws[kind.name](rng.randbytes(BUFFER))
        return replace(self._made[0], index=index)

    def _draw_from(self, strategy: st.SearchStrategy[Case]) -> Callable[[bytes], object]:
        @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(strategy)
        def collect(case: Case) -> None:
            self._made.append(case)

        return collect.hypothesis.fuzz_one_input  # type: ignore[attr-defined, no-any-return]


def typed(
    *pieces: Strategy | str, on: tuple[str, ...] = (), after: Strategy | None = None, texts: Strategy | None = None
) -> st.SearchStrategy[Case]:
    """A command line. Its first word is the kind."""
    return called(str(pieces[0]), line(*pieces), on=on, after=after, texts=texts)


def called(
    kind: str,
    arguments: Strategy,
    *,
    on: tuple[str, ...] = (),
    after: Strategy | None = None,
    texts: Strategy | None = None,
) -> st.SearchStrategy[Case]:
    """Arguments given to something, on parts of the world, after damage to them. `texts` are files of its own."""
    damage, files = (st.just(()) if given is None else given for given in (after, texts))
    return st.builds(Case, st.just(kind), arguments, st.just(on), damage, files)


# ------------------------------------------------------------------------------------------------------ command lines


def line(*pieces: Strategy | str) -> Strategy:
    """Words of a command line one after the other. A piece is a word or a tuple of words."""
    strategies = [st.just(piece) if isinstance(piece, str) else piece for piece in pieces]

    def joined(found: tuple[Any, ...]) -> tuple[str, ...]:
        told: list[str] = []
        for piece in found:
            told += [piece] if isinstance(piece, str) else piece
        return tuple(word.replace("\0", "") for word in told)  # no process can be given one

    return st.tuples(*strategies).map(joined)


def sometimes(strategy: Strategy, share: int = 3) -> Strategy:
    """A piece once in `share` cases."""
    return weighted((share - 1, st.just(())), (1, strategy))


def option(name: str, good: Sequence[str], bad: Strategy, share: int = 4) -> Strategy:
    """Mostly left out. Else good as often as bad, so that the command gets further than its first option."""
    value = weighted((1, st.sampled_from(good)), (1, bad)) if good else bad
    return sometimes(value.map(lambda text: (name, text)), share)


class Pieces:
    """What is drawn from the world: its file names and its settings."""

    def __init__(self, world: World) -> None:
        self.world = world
        recipe = yaml.safe_load(world.parts["recipes"]["recipe.yaml"])
        names = [f"{section}.{name}" for section, content in recipe.items() for name in content]
        names += [f"stream.tokenizer.{name}" for name in recipe["stream"]["tokenizer"]]
        names += [f"stream.tasks.{place}.{name}" for place in (0, 1) for name in recipe["stream"]["tasks"][0]]
        quick = [name for name in names if name.rsplit(".", 1)[-1] not in LONG_BY_RIGHT]
        written = weighted((3, numbers), (2, words), (2, values.map(as_json)))
        setting = st.tuples(st.sampled_from(quick), written).map("=".join)
        hostile = weighted((3, st.sampled_from(MALFORMED)), (2, st.sampled_from(TASKS)), (1, words))
        override = weighted((3, setting), (2, hostile))
        self.overrides = weighted((3, st.tuples(override)), (1, st.lists(override, min_size=1, max_size=3).map(tuple)))

    def damage(self, *parts: str, most: int = 2) -> st.SearchStrategy[tuple[Damage, ...]]:
        """One thing, sometimes more, that happened to files or folders of these parts."""
        names: list[str] = []
        for part in parts:
            files = self.world.names(part)
            folders = {folder.as_posix() for name in files for folder in PurePosixPath(name).parents} - {"."}
            top = [name for name in files if name.count("/") == 1 and name.endswith((".yaml", ".json", ".jsonl"))]
            names += [*files, *sorted(folders), *top]  # what every command reads weighs more than old checkpoints
        return self.damage_of(names, most=most)

    @staticmethod
    def damage_of(
        names: Sequence[str], *, hows: tuple[str, ...] = HOWS, most: int = 2, inside: int = 0
    ) -> st.SearchStrategy[tuple[Damage, ...]]:
        """To one of these, sometimes to more. `inside` makes a changed content likelier than a lost file."""
        how = st.sampled_from(hows + ("content",) * 2 * inside)
        one = st.builds(Damage, st.sampled_from(names), how, st.integers(0, 2**32 - 1))
        return weighted((3, st.tuples(one)), (1, st.lists(one, min_size=1, max_size=most).map(tuple)))
