from __future__ import annotations

import pytest
import torch

from tests.ops.compare import compare, leaf
from trc2.ops.normalise import plain_rms_norm, rms_norm


@pytest.mark.parametrize("shape", [(), (1,), (7,), (63,), (3, 5)])
def test_values_and_gradients_equal_the_plain_norm(shape: tuple[int, ...]) -> None:
    compare(
        lambda x, gain: rms_norm(x, gain, 1e-6), lambda x, gain: plain_rms_norm(x, gain, 1e-6), leaf(*shape, 6), leaf(6)
    )


def test_half_types_come_back_as_they_were() -> None:
    x = torch.randn(4, 6, dtype=torch.bfloat16)
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            normed = rms_norm(x, torch.ones(6), 1e-6)
        assert normed.dtype == torch.bfloat16
        torch.testing.assert_close(normed, plain_rms_norm(x.float(), torch.ones(6), 1e-6).bfloat16())
