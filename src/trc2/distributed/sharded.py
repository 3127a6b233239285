"""Tensors whose rows are divided over the ranks by FSDP: torch's DTensor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_divided(tensor: object) -> bool:
    return _divided(tensor) is not None


def _divided(tensor: object) -> DTensor | None:
    # Importing DTensor takes half as long as torch. If it was not imported, there are no such tensors.
    module = sys.modules.get("torch.distributed.tensor")
    return tensor if module is not None and isinstance(tensor, module.DTensor) else None


def own_rows(tensor: Tensor) -> Tensor:
    """The rows of a tensor on this rank: all of them if it is not divided."""
    divided = _divided(tensor)
    return tensor if divided is None else divided.to_local()


def put_together(tensor: Tensor) -> Tensor:
    """The whole tensor, put together from all ranks if it is divided."""
    divided = _divided(tensor)
    return tensor if divided is None else divided.full_tensor()


def number(tensor: Tensor) -> float:
    """A single number, put together from all ranks if it is divided."""
    return float(put_together(tensor))


def divide_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every rank has, divided as another one of the same shape. Nothing is sent."""
    pattern = _divided(like)
    if pattern is None or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import DTensor

    mesh: Any = pattern.device_mesh
    parts = tensor.to(like.device).chunk(mesh.size())
    place = mesh.get_local_rank()
    own = parts[place] if place < len(parts) else tensor[:0].to(like.device)
    return DTensor.from_local(
        own.contiguous(), mesh, pattern.placements, run_check=False, shape=tensor.shape, stride=like.stride()
    )
