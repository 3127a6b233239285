"""Tensors whose rows are divided over the ranks: FSDP's, as torch's DTensor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_divided(tensor: object) -> bool:
    return _divided(tensor) is not None


def _divided(tensor: object) -> DTensor | None:
    # Importing DTensor takes half as long as torch; where nobody has imported it, nothing can be one.
    module = sys.modules.get("torch.distributed.tensor")
    return tensor if module is not None and isinstance(tensor, module.DTensor) else None


def own_rows(tensor: Tensor) -> Tensor:
    """The rows that this rank holds: of a tensor that is not divided, all."""
    divided = _divided(tensor)
    return tensor if divided is None else divided.to_local()


def put_together(tensor: Tensor) -> Tensor:
    """The tensor put together from all ranks; one that is not divided is whole."""
    divided = _divided(tensor)
    return tensor if divided is None else divided.full_tensor()


def number(tensor: Tensor) -> float:
    """A single number, put together from all ranks where it is divided."""
    return float(put_together(tensor))


def divide_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every rank has, divided as another of the same shape; nothing travels."""
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
