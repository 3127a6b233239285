"""States of the generators: restored exactly, and never with a value that Python would take but cannot use."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from trc2.system.rng import restore_rng, rng_state, rng_tensors, rng_unchanged


def draws() -> list[object]:
    """Of Python's, numpy's and torch's global generators."""
    return [random.gauss(0.0, 1.0), random.random(), np.random.standard_normal(), torch.rand(3).tolist()]  # noqa: NPY002


def test_all_generators_go_on_where_they_were_saved_also_through_json() -> None:
    random.gauss(0.0, 1.0)  # Python keeps a second draw
    tensors, state = rng_tensors(), json.loads(json.dumps(rng_state()))
    first = draws()
    restore_rng(tensors, state)
    assert draws() == first


@pytest.mark.parametrize("second_draw", [[], "x", {}])
def test_a_second_draw_that_is_no_number_is_an_error(second_draw: object) -> None:
    with rng_unchanged():
        state = rng_state()
        state["python"][2] = second_draw
        with pytest.raises((TypeError, ValueError)):
            restore_rng(rng_tensors(), state)
        random.gauss(0.0, 1.0)
