from __future__ import annotations

import ast
import re

import pytest

from trc2.stream.builtin import CORPORA, documents


@pytest.mark.parametrize("corpus", sorted(CORPORA))
def test_splits_share_no_document_and_all_have_text(corpus: str) -> None:
    splits = {split: {d.text for d in documents(corpus, split)} for split in ("train", "validation", "test")}
    assert all(len(" ".join(texts)) > 20_000 for texts in splits.values())
    assert splits["train"].isdisjoint(splits["validation"])
    assert splits["train"].isdisjoint(splits["test"])
    assert splits["validation"].isdisjoint(splits["test"])


def test_every_step_of_the_arithmetic_is_right() -> None:
    for document in documents("arithmetic", "validation"):
        steps = re.findall(r"^(?:Answer: )?(\d+ \S \d+) = (-?\d+)\.$", document.text, flags=re.MULTILINE)
        assert len(steps) >= 2
        for expression, result in steps:
            left, sign, right = expression.split()
            value = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}.get(sign)
            value = int(left) / int(right) if value is None else value
            assert value == int(result), document.text
        assert document.text.endswith(f"#### {steps[-1][1]}")
        assert int(steps[-1][1]) >= 0


def test_code_holds_no_docstrings() -> None:
    checked = 0
    for document in documents("code", "validation"):
        try:
            tree = ast.parse(document.text)
        except SyntaxError:
            continue  # a body that was only a docstring is gone
        checked += 1
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and node.body:
                assert ast.get_docstring(node) is None
    assert checked > 3
