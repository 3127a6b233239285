"""Tensors whose rows are divided over the ranks: FSDP's, as torch's DTensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


def is_divided(tensor: object) -> bool:
    return isinstance(tensor, DTensor)


def own_rows(tensor: Tensor) -> Tensor:
    """The rows that this rank holds: of a tensor that is not divided, all."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def put_together(tensor: Tensor) -> Tensor:
    """The tensor put together from all ranks; one that is not divided is whole."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def number(tensor: Tensor) -> float:
    """A single number, put together from all ranks where it is divided."""
    return float(put_together(tensor))


def divide_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every rank has, divided as another of the same shape; nothing travels."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    mesh: Any = like.device_mesh
    parts = tensor.to(like.device).chunk(mesh.size())
    place = mesh.get_local_rank()
    own = parts[place] if place < len(parts) else tensor[:0].to(like.device)
    return DTensor.from_local(
        own.contiguous(), mesh, like.placements, run_check=False, shape=tensor.shape, stride=like.stride()
    )
