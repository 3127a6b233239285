"""Three corpora that need no download: technical prose, Python code, and arithmetic with worked solutions.

The first two are read from the running Python's standard library, so their fingerprint names its version.
"""

from __future__ import annotations

import ast
import functools
import operator
import random
import sysconfig
import textwrap
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from trc2.stream.document import Document
from trc2.stream.holdout import place_of

SPLIT_SHARES = {"train": 0.9, "validation": 0.05, "test": 0.05}
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "turtledemo", "ensurepip"}
ARITHMETIC_PROBLEMS = 12_000
SHORTEST_PROSE = 200
HOLDERS = (ast.stmt, ast.ExceptHandler, ast.match_case)  # what can hold statements, and so docstrings


def documents(corpus: str, split: str) -> Iterator[Document]:
    """The documents of one split. The split of a document depends only on its text."""
    return (document for document in _all(corpus) if split_of(document.text) == split)


@functools.cache
def _all(corpus: str) -> tuple[Document, ...]:
    """Kept in memory, at most about 10 MB, because every split and the tokenizer need it."""
    return tuple(CORPORA[corpus]())


def split_of(text: str) -> str:
    """The split of a text by its hash: equal texts share a split, and adding a document moves no other."""
    place = place_of(text.encode())
    for split, share in SPLIT_SHARES.items():
        place -= share
        if place < 0:
            return split
    return "test"


# ------------------------------------------------------------------------------------------------ standard library


def _modules() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if LEFT_OUT.isdisjoint(relative.parts) and relative.parts[0] != "pydoc_data":
            try:
                yield relative.as_posix(), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a handful of codec test files


def _docstring_nodes(tree: ast.Module) -> Iterator[ast.Expr]:
    """Docstrings in the order of `ast.walk`. Expressions are skipped, because they do not hold docstrings."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body[:1]:
                case [ast.Expr(value=ast.Constant(value=str())) as docstring]:
                    yield docstring
        waiting.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, HOLDERS))


@functools.cache
def _library() -> tuple[list[Document], list[Document]]:
    """For every module its docstrings as one document, and its code without them."""
    prose, code = [], []
    for name, source in _modules():
        nodes = list(_docstring_nodes(ast.parse(source)))
        strings = [str(node.value.value) for node in nodes]  # type: ignore[attr-defined]
        text = "\n\n".join(textwrap.dedent(string).strip() for string in strings)
        if len(text) >= SHORTEST_PROSE:
            prose.append(Document(text, name))
        hidden = {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        kept = [line for number, line in enumerate(source.splitlines(), start=1) if number not in hidden]
        if len(kept) > 5:
            code.append(Document("\n".join(kept).strip() + "\n", name))
    return prose, code


def prose() -> Iterator[Document]:
    """Python's help topics, and the docstrings of each standard-library module as one document."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield Document(text, f"topic {name}")
    yield from _library()[0]


def code() -> Iterator[Document]:
    """Standard-library modules without their docstrings, which are in the prose corpus."""
    yield from _library()[1]


# -------------------------------------------------------------------------------------------------------- arithmetic

NAMES = ("Ada", "Ben", "Chen", "Dana", "Emil", "Fatima", "Goran", "Hana", "Ivan", "Jun", "Kofi", "Lena", "Mona", "Nils")
THINGS = ("apples", "books", "coins", "eggs", "lamps", "marbles", "pens", "seeds", "shells", "stamps", "tiles", "tins")


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


def arithmetic() -> Iterator[Document]:
    """Word problems of two to four steps. Every step shows its calculation, the last line is the answer."""
    for number in range(ARITHMETIC_PROBLEMS):
        rng = random.Random(f"arithmetic {number}")
        question, answer = PROBLEMS[number % len(PROBLEMS)](rng)
        yield Document(f"Question: {question}\nAnswer: {answer}", f"problem {number}")


def _solution(*steps: tuple[int, str, int]) -> str:
    results = [OPERATIONS[sign](left, right) for left, sign, right in steps]
    lines = [f"{left} {sign} {right} = {c}." for (left, sign, right), c in zip(steps, results, strict=True)]
    return "\n".join([*lines, f"#### {results[-1]}"])


def _shopping(rng: random.Random) -> tuple[str, str]:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    price, count = rng.randint(2, 19), rng.randint(3, 24)
    total = price * count
    paid = (total // 50 + rng.randint(1, 3)) * 50
    question = f"{name} buys {count} {thing} at {price} each and pays with {paid}. How much change does {name} get?"
    return question, _solution((count, "*", price), (paid, "-", total))


def _collecting(rng: random.Random) -> tuple[str, str]:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    start, daily, days, lost = rng.randint(5, 80), rng.randint(2, 15), rng.randint(3, 14), rng.randint(1, 9)
    question = (
        f"{name} has {start} {thing}, finds {daily} more every day for {days} days, and loses {lost}. "
        f"How many {thing} does {name} have then?"
    )
    collected = daily * days
    return question, _solution((daily, "*", days), (start, "+", collected), (start + collected, "-", lost))


def _sharing(rng: random.Random) -> tuple[str, str]:
    name, other = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    friends, each, left = rng.randint(3, 12), rng.randint(4, 20), rng.randint(0, 2)
    total = friends * each + left
    question = (
        f"{name} and {other} have {total} {thing} together. They keep {left} and share the rest equally among "
        f"{friends} friends. How many {thing} does each friend get?"
    )
    return question, _solution((total, "-", left), (total - left, "/", friends))


def _travelling(rng: random.Random) -> tuple[str, str]:
    name = rng.choice(NAMES)
    speed, hours, faster, more = rng.randint(20, 90), rng.randint(2, 6), rng.randint(5, 30), rng.randint(1, 4)
    question = (
        f"{name} drives {hours} hours at {speed} km per hour, then {more} hours at {faster} km per hour more. "
        f"How far does {name} drive?"
    )
    first, second = speed * hours, (speed + faster) * more
    return question, _solution(
        (speed, "*", hours), (speed, "+", faster), (speed + faster, "*", more), (first, "+", second)
    )


PROBLEMS: tuple[Callable[[random.Random], tuple[str, str]], ...] = (_shopping, _collecting, _sharing, _travelling)
CORPORA: dict[str, Callable[[], Iterator[Document]]] = {"prose": prose, "code": code, "arithmetic": arithmetic}
