from __future__ import annotations

import pytest
import torch

from tests.ops.compare import compare_gradients
from trc2.nn.attention import CausalAttention
from trc2.nn.rope import RotaryTable
from trc2.nn.segments import pack
from trc2.reference import column as reference

BASE = 10_000.0


@pytest.mark.parametrize(("length", "shifted"), [(1, True), (2, False), (7, True), (7, False), (63, True)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_and_gradients_equal_the_reference(length: int, dtype: torch.dtype, shifted: bool) -> None:
    layer = CausalAttention(8, 4, 2, has_query_shift=True).to(dtype)
    table = RotaryTable(64, 2, BASE).to(dtype)
    packed = pack([torch.zeros(2, length, dtype=torch.int64)])
    u = torch.randn(2, length, 8, dtype=dtype, requires_grad=True)
    z = torch.randn(2, length, 8, dtype=dtype, requires_grad=True) if shifted else None
    flat_z = None if z is None else z.flatten(0, 1)
    fast = layer(u.flatten(0, 1), flat_z, table(packed.positions), packed.segments).unflatten(0, (2, length))
    slow = reference.attention(u, z, dict(layer.named_parameters()), 4, 2, BASE)
    close = 1e-11 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(fast, slow, atol=close, rtol=close)
    inputs = [u, *([] if z is None else [z]), *layer.parameters()]
    compare_gradients(fast.square().sum(), slow.square().sum(), inputs, atol=close, rtol=close)


def test_a_missing_shift_gives_its_map_a_zero_gradient() -> None:
    layer = CausalAttention(8, 4, 2, has_query_shift=True)
    packed = pack([torch.zeros(1, 3, dtype=torch.int64)])
    layer(torch.randn(3, 8), None, RotaryTable(8, 2, BASE)(packed.positions), packed.segments).sum().backward()
    assert layer.query_shift.weight.grad is not None
    assert not layer.query_shift.weight.grad.any()


def test_segments_do_not_see_each_other() -> None:
    layer, table = CausalAttention(8, 4, 2, has_query_shift=False), RotaryTable(16, 2, BASE)
    first, second = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.int64)
    u = torch.randn(22, 8)
    both, alone = pack([first, second]), pack([second])
    joined = layer(u, None, table(both.positions), both.segments)
    torch.testing.assert_close(joined[10:], layer(u[10:], None, table(alone.positions), alone.segments))


def test_a_widened_table_is_exact_not_rounded() -> None:
    widened, exact = RotaryTable(64, 8, BASE).double(), torch.arange(64, dtype=torch.float64)
    assert torch.equal(widened.cos[:, 0], exact.cos())


@pytest.mark.parametrize("learns", [True, False])
def test_the_query_shift_leaves_alone_what_a_hook_was_given(learns: bool) -> None:
    layer = CausalAttention(8, 4, 2, has_query_shift=True)
    packed = pack([torch.zeros(1, 5, dtype=torch.int64)])
    u, z = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8)
    seen: list[torch.Tensor] = []
    layer.qkv.register_forward_hook(lambda _m, _i, out: seen.append(out))
    layer.qkv.register_full_backward_hook(lambda _m, _i, _o: None)
    with torch.set_grad_enabled(learns):
        out = layer(u, z, None, packed.segments)
        torch.testing.assert_close(seen[0], u @ layer.qkv.weight.T)
    if learns:
        (out.sum() + seen[0].square().sum()).backward()
