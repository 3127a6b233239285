from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import trc2
from trc2.ops.modes import at_least_float32, compute_dtype, with_gradient

SOURCE = Path(trc2.__file__).parent


class Double(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Double.calls += 1
        assert ctx.needs_input_grad[0]
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


def test_the_plain_twin_runs_only_where_no_gradient_is_recorded() -> None:
    x, before = torch.ones(3, requires_grad=True), Double.calls
    (grad,) = torch.autograd.grad(with_gradient(Double.apply, lambda x: 3 * x, x).sum(), x)
    assert grad.tolist() == [2.0] * 3
    assert Double.calls == before + 1
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert with_gradient(Double.apply, lambda x: 3 * x, x).tolist() == [3.0] * 3
    assert Double.calls == before + 1


def test_a_function_of_our_own_cannot_see_that_no_gradient_will_be_asked_for() -> None:
    """The reason for the choice: `Double` asserts that its parameter needs a gradient, and is right even here."""
    with torch.no_grad():
        assert not Double.apply(torch.ones(3, requires_grad=True)).requires_grad


def test_own_gradients_live_in_ops_and_one_file_looks_at_the_gradient_mode() -> None:
    functions, looks = set(), set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("Function" in ast.unparse(base) for base in node.bases):
                functions.add(path.parent.name)
            if isinstance(node, ast.Attribute) and node.attr == "is_grad_enabled":
                looks.add(path.name)
    assert functions == {"ops"}
    assert looks == {"modes.py"}


def test_only_half_types_are_widened() -> None:
    for narrow in (torch.float16, torch.bfloat16):
        assert at_least_float32(torch.ones(2, dtype=narrow)).dtype == torch.float32
    for wide in (torch.float32, torch.float64):
        x = torch.ones(2, dtype=wide)
        assert at_least_float32(x) is x


def test_products_are_computed_in_the_type_of_autocast_but_for_float64() -> None:
    assert compute_dtype(torch.ones(2)) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        x = torch.ones(2, 2)
        assert compute_dtype(x) == (x @ x).dtype == torch.bfloat16
        assert compute_dtype(x.double()) == torch.float64
