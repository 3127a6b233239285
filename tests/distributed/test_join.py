"""What ranks may say to each other, in two real processes."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.conftest import tiny_config
from tests.distributed.several import together
from trc2.backbones.registry import build_model
from trc2.distributed.group import ALONE, check_divides
from trc2.distributed.join import joined
from trc2.errors import UserError
from trc2.training.guards import RanksDiffer, check_ranks_agree

CPU = torch.device("cpu")


def talk() -> dict[str, object]:
    """Every method once. Ranks bring different things."""
    with joined(CPU) as ranks:
        rank = ranks.rank
        floats = torch.arange(float(2 * rank), dtype=torch.float32).view(-1, 2) + 10 * rank
        halves = torch.full((1 + rank, 3), rank + 0.5, dtype=torch.bfloat16)
        numbers = torch.full((2 - rank,), 2**40 + rank)
        gathered = ranks.gather(floats, halves, numbers)
        model = build_model(tiny_config())
        model.ranks = ranks
        check_ranks_agree(ranks, copy.deepcopy(model), {"same": torch.ones(3)})  # a copy stays in the group
        with pytest.raises(RanksDiffer, match="hold different other"):
            check_ranks_agree(ranks, model, {"other": torch.full((1,), float(rank)), "same": torch.ones(3)})

        def refuse() -> None:
            raise UserError("The folder is taken: choose another.")

        with pytest.raises(UserError, match="The folder is taken"):
            ranks.on_first(refuse)
        summed = [torch.ones(2) * rank, torch.ones(3, dtype=torch.float64) * (1 + rank), torch.ones(1) * 5]
        ranks.add_up(summed)
        with joined(CPU) as again:  # a group that is there is used, and left as it is
            assert again.world == ranks.world
        return {
            "gathered": [(tensor.dtype, tensor.tolist()) for tensor in gathered],
            "nothing": ranks.gather(torch.empty(0, 4))[0].shape,
            "rows": ranks.gather_rows([[0.1, rank]] * rank, 2),
            "total": ranks.total(3 + rank),
            "first": ranks.first_says(7 + rank),
            "on first": ranks.on_first(lambda: "done"),
            "share": ranks.share(6),
            "summed": [tensor.tolist() for tensor in summed],
        }


def test_two_ranks_hear_the_same_in_the_order_of_ranks() -> None:
    first, second = together(2, talk)
    assert (first.pop("on first"), second.pop("on first")) == ("done", None)
    assert (first.pop("share"), second.pop("share")) == (range(3), range(3, 6))
    assert first == second
    assert first["gathered"] == [
        (torch.float32, [[10.0, 11.0]]),
        (torch.bfloat16, [[0.5] * 3, [1.5] * 3, [1.5] * 3]),
        (torch.int64, [2**40, 2**40, 2**40 + 1]),
    ]
    assert first["nothing"] == (0, 4)
    assert first["rows"] == [[0.1, 1.0]]
    assert (first["total"], first["first"]) == (7, 7)
    assert first["summed"] == [[1.0, 1.0], [3.0] * 3, [10.0]]


def test_alone_everything_is_answered_at_once() -> None:
    x = torch.ones(2)
    assert ALONE.gather(x)[0] is x
    assert (ALONE.total(3), ALONE.first_says(4), ALONE.on_first(lambda: 5)) == (3, 4, 5)
    assert ALONE.share(6) == range(6)
    assert ALONE.gather_rows([[1, 2.5]], 2) == [[1.0, 2.5]]
    with joined(CPU) as ranks:
        assert ranks is ALONE


def test_a_world_that_does_not_divide_the_step_is_told_which_would() -> None:
    with pytest.raises(UserError, match="micro_batches=6 cannot be divided over 4 processes: use 1, 2, 3 or 6 of them"):
        check_divides(6, 4)
