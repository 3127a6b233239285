"""A matrix of runs: backbones × sizes × ablations × strategies × seeds × orders, read from YAML."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from trc2.config import RunConfig, load_recipe, parse_settings, read_settings
from trc2.config.run import apply_overrides, recipe_settings
from trc2.config.section import Section, Seed, SettingError, shown
from trc2.errors import UserError, brief, did_you_mean
from trc2.runs.schedule import TaskSchedule

MAX_CELLS = 10_000
Changes = dict[str, tuple[str, ...]]
"""Names, and the overrides that each stands for."""
Orders = tuple[tuple[str, ...], ...] | Literal["all", "others"] | None
EVERY_ORDER = "stream.order=all"


@dataclass(frozen=True, eq=False)
class Variant:
    """The config of one of the runs that differ only in their seed. The others are as valid and as long."""

    config: RunConfig

    @cached_property
    def total_steps(self) -> int:
        return TaskSchedule.of_run(self.config).total_steps


@dataclass(frozen=True)
class Cell:
    """One run of the matrix: a name that says what it is, and the command that trains it."""

    name: str
    recipe: str
    overrides: tuple[str, ...]
    seed: int
    variant: Variant
    axes: Mapping[str, str] = field(
        default_factory=dict
    )  # names of recipe, size, ablation and strategy; "" if not used
    order: tuple[str, ...] = ()

    @cached_property
    def config(self) -> RunConfig:
        """Made when it is asked for: a large matrix has few variants, and a config takes milliseconds."""
        is_first = self.variant.config.train.seed == self.seed
        return self.variant.config if is_first else load_recipe(self.recipe, self.overrides)

    def command(self, folder: Path) -> list[str]:
        """What follows `trc2` to train it into a folder."""
        return ["train", self.recipe, *self.overrides, f"output.folder={folder}"]


class Grid(Section):
    """Every combination of its axes. An axis that is left out has one entry, which changes nothing."""

    recipes: tuple[str, ...] = Field(min_length=1, description="recipes: backbones, and streams")
    sizes: Changes = Field({}, description="name: [model.d_model=256, …]")
    ablations: Changes = Field({}, description="name: [model.memory=false, …]")
    strategies: Changes = Field({}, description="names of strategies, or name: [strategy=ewc, strategy.strength=10]")
    seeds: tuple[Seed, ...] = Field((0,), min_length=1)
    orders: Orders = Field(
        None, description="orders of the tasks; all: every one; others: every one but the listed one"
    )
    settings: tuple[str, ...] = Field((), description="overrides of every run; {seed} stands for its seed")

    @field_validator("sizes", "ablations", "strategies", mode="before")
    @classmethod
    def _named_overrides(cls, changes: Any, info: ValidationInfo) -> Any:
        is_list = isinstance(changes, list | tuple) and all(isinstance(name, str) for name in changes)
        if info.field_name == "strategies" and is_list:  # names alone will do
            changes = {name: () if name == "none" else (f"strategy={name}",) for name in changes}
        if not isinstance(changes, Mapping):
            raise ValueError(
                f"<path>={shown(changes)} is not a list of names: write it as name: [section.field=value]."
            )
        for name in changes:
            if not isinstance(name, str) or not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
                raise ValueError(f"<path> has the name {shown(name)}: use letters, digits, '_', '-' and '.'.")
        return changes

    @property
    def num_cells(self) -> int:
        """How many runs there are at least. How many orders `all` are is known when the recipe is read."""
        axes = (self.seeds, self.recipes, *map(_entries, (self.sizes, self.ablations, self.strategies)))
        return math.prod(map(len, axes))

    def cells(self, extra: tuple[str, ...]) -> Iterable[Cell]:
        """Seeds outermost, so that a sweep that is stopped early has something of everything."""
        variants: dict[tuple[str, ...], Variant] = {}
        orders: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        recipes: dict[str, dict[str, Any]] = {}  # reading one takes as long as checking a run
        for seed, recipe in itertools.product(self.seeds, self.recipes):
            for size, ablation, strategy in itertools.product(
                *map(_entries, (self.sizes, self.ablations, self.strategies))
            ):
                fixed = (*size[1], *ablation[1], *strategy[1], *self.settings, *extra)
                every = EVERY_ORDER in fixed
                fixed = tuple(override.replace("{seed}", str(seed)) for override in fixed if override != EVERY_ORDER)
                of = (recipe, *fixed, *([EVERY_ORDER] if every else []))
                if of not in orders:
                    orders[of] = list(self._orders_of(recipe, fixed, "all" if every else self.orders))
                for order in orders[of]:
                    overrides = (*fixed, f"train.seed={seed}", *_order_override(order))
                    names = [recipe_name(recipe), size[0], ablation[0], strategy[0], "-".join(order), f"s{seed}"]
                    name = "+".join(word for word in names if word and word != "none")
                    key = (recipe, *fixed, *_order_override(order))
                    if key not in variants:
                        variants[key] = Variant(_config(name, recipe, overrides, recipes))
                    axes = dict(zip(("recipe", "size", "ablation", "strategy"), names, strict=False))
                    yield Cell(name, recipe, overrides, seed, variants[key], axes, order)

    @staticmethod
    def _orders_of(recipe: str, overrides: tuple[str, ...], orders: Orders) -> Iterable[tuple[str, ...]]:
        if orders is None:
            return [()]
        if isinstance(orders, tuple):
            return orders
        stream = load_recipe(recipe, overrides).stream
        if stream is None:
            raise UserError(f"The recipe {recipe} has no stream of tasks, so it has no orders: leave orders out.")
        listed = [task.name for task in stream.tasks]
        trained = stream.only or listed
        if stream.mode == "joint" or len(trained) == 1:  # a reference, for which the order does not matter
            return [()] if orders == "all" else []
        if math.factorial(len(listed)) > MAX_CELLS:
            raise UserError(f"{len(listed)} tasks have {math.factorial(len(listed))} orders: name those you want.")
        every = list(_distinct(listed, trained))
        return every if orders == "all" else every[1:]


class Matrix(Section):
    """A sweep: grids one after the other."""

    title: str = ""
    grids: tuple[Grid, ...] = Field(min_length=1)

    def cells(self, extra: Iterable[str] = ()) -> list[Cell]:
        """Every run once. `extra` overrides are laid over all. Seeds outermost over all grids."""
        by_name: dict[str, Cell] = {}
        extra = tuple(extra)
        least = sum(grid.num_cells for grid in self.grids)  # counted before any of them is made
        if least > MAX_CELLS:
            raise UserError(f"The matrix has {least} runs or more: make it smaller, at most {MAX_CELLS}.")
        cells = (cell for grid in self.grids for cell in grid.cells(extra))
        every = list(itertools.islice(cells, MAX_CELLS + 1))
        if not every:
            raise UserError("The matrix has 0 runs: joint training and single tasks have no other orders to run.")
        if len(every) > MAX_CELLS:
            raise UserError(f"The matrix has more than {MAX_CELLS} runs: make it smaller.")
        seeds = {seed: place for place, seed in enumerate(dict.fromkeys(cell.seed for cell in every))}
        for cell in sorted(every, key=lambda cell: seeds[cell.seed]):
            first = by_name.setdefault(cell.name, cell)
            is_same = first is cell or (first.recipe, first.overrides) == (cell.recipe, cell.overrides)
            if not is_same and first.config != cell.config:
                raise UserError(
                    f"Two runs of the matrix are called {brief(cell.name, 120)} but differ: give their grids an "
                    "ablation or size with a name that tells them apart."
                )
        return list(by_name.values())


def _entries(changes: Changes) -> list[tuple[str, tuple[str, ...]]]:
    return list(changes.items()) or [("", ())]


def _distinct(listed: list[str], trained: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """Orders that differ in the tasks that are trained, the listed one first."""
    orders: dict[tuple[str, ...], tuple[str, ...]] = {}
    for order in itertools.permutations(listed):
        orders.setdefault(tuple(name for name in order if name in trained), order)
    return orders.values()


def _order_override(order: tuple[str, ...]) -> tuple[str, ...]:
    return (f"stream.order=[{','.join(order)}]",) if order else ()


def recipe_name(recipe: str) -> str:
    """A recipe's name, of a file its stem."""
    return Path(recipe).stem


def _config(name: str, recipe: str, overrides: tuple[str, ...], recipes: dict[str, dict[str, Any]]) -> RunConfig:
    """The settings of a run. `recipes` has the recipes that were read before."""
    try:
        if recipe not in recipes:
            recipes[recipe] = recipe_settings(recipe)
        config = RunConfig(**apply_overrides(recipes[recipe], overrides))
    except UserError as problem:
        raise UserError(f"The run {brief(name, 120)} of the matrix cannot be: {problem}") from None
    if config.stream is None:
        raise UserError(f"The run {brief(name, 120)} of the matrix has no stream of tasks: choose another recipe.")
    return config


def matrix_names() -> list[str]:
    """Matrices that come with the package."""
    folder = resources.files("trc2") / "matrices"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_matrix(name_or_path: str) -> Matrix:
    """Read a matrix by name or path."""
    if name_or_path in matrix_names():
        text = (resources.files("trc2") / "matrices" / f"{name_or_path}.yaml").read_text(encoding="utf-8")
        values = parse_settings(text, name_or_path)
    elif os.path.isfile(name_or_path):
        values = read_settings(Path(name_or_path), remedy="correct the file")
    else:
        raise UserError(
            f"There is no matrix or file '{brief(name_or_path, 80)}': {did_you_mean(name_or_path, matrix_names())}"
        )
    try:
        return Matrix(**values)
    except SettingError as problem:
        raise UserError(f"{brief(name_or_path, 80)}: {problem}") from None
