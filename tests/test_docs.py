"""What the documents name is there: files, functions and tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "trc2", ROOT / "tests"
DOCUMENTS = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
EXAMPLES = re.compile(r"mine|NAME|mytask|KEY")  # what a reader is asked to write


@cache
def names_in(path: Path) -> set[str]:
    """Functions, classes and assigned names of a module, methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        found |= _names(node, "")
    return found


def _names(node: ast.stmt, prefix: str) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return {prefix + node.name}
    if isinstance(node, ast.ClassDef):
        inside = {name for child in node.body for name in _names(child, f"{prefix}{node.name}.")}
        return {prefix + node.name} | inside
    if isinstance(node, ast.Assign):
        return {prefix + target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {prefix + node.target.id}
    return set()


def find(path: str) -> Path | None:
    return next((base / path for base in (SOURCE, TESTS, ROOT, ROOT / "src") if (base / path).is_file()), None)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_functions_and_tests_named_in_a_document_exist(document: Path) -> None:
    missing = []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
        for word in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|yaml|json|md)(?:::?[\w.]+)?)`", line):
            path, _, name = word.partition(":")
            if EXAMPLES.search(word) or path.startswith(("runs/demo", "DATA/")):
                continue
            found = find(path)
            if found is None or (name and name.lstrip(":") not in names_in(found)):
                missing.append(f"{document.name}:{number} {word}")
    assert missing == []
