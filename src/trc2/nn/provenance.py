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
    """Where the tokens of a batch come from; −1 or None where unknown. Positions default to the place in the row.

    `task` is one number, or one per row.
    """

    task: int | Int[Tensor, " B"] = UNKNOWN
    document: Int[Tensor, "B T"] | None = None
    position: Int[Tensor, "B T"] | None = None


def stamp(places: Int[Tensor, "N 2"], origin: Origin | None, step: int) -> Int[Tensor, "N 4"]:
    """(task, step, document, position) of the tokens at (row, place in the row)."""
    origin = origin or Origin()
    row, place = places.unbind(dim=1)
    document = torch.full_like(place, UNKNOWN) if origin.document is None else _at(origin.document, row, place)
    position = place if origin.position is None else _at(origin.position, row, place)
    of_row = origin.task
    task = of_row.to(place.device)[row] if isinstance(of_row, Tensor) else torch.full_like(place, of_row)
    return torch.stack((task, torch.full_like(place, step), document, position), dim=1)


def _at(values: Int[Tensor, "B T"], row: Int[Tensor, " N"], place: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    return values.to(place.device)[row, place]
