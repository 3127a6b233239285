from __future__ import annotations

import torch

from trc2.ops.dtypes import at_least_float32, compute_dtype


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
