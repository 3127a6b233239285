"""Where tokens come from: data that travels with a batch and is remembered with every event."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

UNKNOWN = -1
ORIGIN_FIELDS = ("task", "step", "document", "position")


@dataclass(frozen=True)
class Origin:
    """Where the tokens of a batch come from. −1 or None where unknown. `position` defaults to the column of the token.

    `task` is one number, or one per row.
    """

    task: int | Int[Tensor, " B"] = UNKNOWN
    document: Int[Tensor, "B T"] | None = None
    position: Int[Tensor, "B T"] | None = None


def stamp(places: Int[Tensor, "N 2"], origin: Origin | None, step: int) -> Int[Tensor, "N 4"]:
    """(task, step, document, position) of the tokens at `places`, which are (row, column) pairs."""
    origin = origin or Origin()
    row, column = places.unbind(dim=1)
    device = places.device
    document = torch.full_like(row, UNKNOWN) if origin.document is None else origin.document.to(device)[row, column]
    position = column if origin.position is None else origin.position.to(device)[row, column]
    task = origin.task.to(device)[row] if isinstance(origin.task, Tensor) else torch.full_like(row, origin.task)
    return torch.stack((task, torch.full_like(row, step), document, position), dim=1)
