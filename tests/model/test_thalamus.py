from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny_config
from tests.ops.compare import compare_gradients
from trc2.model.thalamus import ThalamicRouter, past_mean
from trc2.nn.segments import Segment, pack
from trc2.reference import thalamus as reference


@pytest.mark.parametrize("length", [1, 2, 7, 63])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_and_gradients_equal_the_reference(length: int, groups: int, dtype: torch.dtype) -> None:
    config = tiny_config(thalamic_groups=groups)
    router = ThalamicRouter(config).to(dtype)
    for parameter in router.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    report = torch.randn(2, length, config.d_model, dtype=dtype, requires_grad=True)
    segments = pack([torch.zeros(2, length, dtype=torch.int64)]).segments
    fast = router(report.flatten(0, 1), segments).unflatten(0, (2, length))
    slow = reference.router(
        report, dict(router.named_parameters()), groups, config.thalamic_inhibition, config.norm_eps
    )
    close = 1e-11 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(fast, slow, atol=close, rtol=close)
    inputs = [report, *router.parameters()]
    compare_gradients(fast.square().sum(), slow.square().sum(), inputs, atol=close, rtol=close * 10)


def test_the_past_mean_of_the_first_token_is_zero_and_excludes_the_present() -> None:
    z = torch.tensor([[[2.0], [4.0], [9.0]]])
    assert past_mean(z, Segment(0, 1, 3)).flatten().tolist() == [0.0, 2.0, 3.0]


def test_padding_is_not_part_of_the_past() -> None:
    z = torch.tensor([[[100.0], [2.0], [4.0], [9.0]]])
    valid = torch.tensor([[False, True, True, True]])
    assert past_mean(z, Segment(0, *valid.shape, valid)).flatten().tolist()[1:] == [0.0, 2.0, 3.0]
