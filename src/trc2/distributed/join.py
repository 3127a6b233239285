"""Forming a group of processes that torchrun started, over NCCL and gloo."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from trc2.distributed.group import ALONE, Ranks, bytes_of
from trc2.errors import UserError, brief, sentence_of
from trc2.system.torchrun import num_restarts, world_of_process

T = TypeVar("T")


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The group of this process, formed on the way in and left on the way out. An existing group is used as it is.

    Tensors on the host are sent by gloo, tensors on a GPU by NCCL.
    """
    if world_of_process() == 1:
        yield ALONE
        return
    if dist.is_initialized():
        yield ProcessRanks()
        return
    store, rank, world = next(iter(rendezvous("env://")))
    # torchrun's store outlives the workers: restarted ones must not find the addresses of earlier ones.
    store = PrefixStore(f"trc2-{num_restarts()}", store)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend, own_device = "cpu:gloo,cuda:nccl", device
    else:
        backend, own_device = "gloo", None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, device_id=own_device)
    try:
        yield ProcessRanks()
    except BaseException as error:
        if device.type == "cpu":  # NCCL would wait for messages that never come
            dist.destroy_process_group()
        if _is_loss(error):
            raise RankLost(
                f"Another process of this run was lost, so this one stops ({brief(error)}): torchrun starts all of "
                "them again if --max-restarts allows, otherwise use `trc2 resume`."
            ) from error
        raise
    dist.destroy_process_group()


class RankLost(UserError):
    """A process that others wait for is gone."""

    exit_code = 1


def _is_loss(error: BaseException) -> bool:
    """Whether a message failed. NCCL has its own errors, gloo only names itself."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


class ProcessRanks(Ranks):
    """Several processes, one of which is this one."""

    def __init__(self) -> None:
        self.world, self.rank = dist.get_world_size(), dist.get_rank()

    def gather(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Two messages for all tensors together: the numbers of rows, then the bytes, padded to the longest.

        The first is sent from the host, so that sizes do not wait for a GPU.
        """
        counts = self._exchange(torch.tensor([tensor.shape[0] for tensor in tensors]))
        widths = [tensor.element_size() * math.prod(tensor.shape[1:]) for tensor in tensors]
        sizes = counts * torch.tensor(widths)
        longest = int(sizes.sum(dim=1).max())
        if longest == 0:
            return tensors
        own = torch.cat([bytes_of(tensor) for tensor in tensors])
        padded = own.new_zeros(longest)
        padded[: own.numel()] = own
        parts = [
            row[: sum(lengths)].split(lengths)
            for row, lengths in zip(self._exchange(padded), sizes.tolist(), strict=True)
        ]
        # `cat` copies, so that the parts are aligned for any dtype.
        return tuple(
            torch.cat([part[index] for part in parts]).view(tensor.dtype).view(-1, *tensor.shape[1:])
            for index, tensor in enumerate(tensors)
        )

    def gather_rows(self, rows: Sequence[Sequence[float]], width: int) -> list[list[float]]:
        return self.gather(torch.tensor(rows, dtype=torch.float64).view(len(rows), width))[0].tolist()

    def total(self, value: int) -> int:
        return int(self._exchange(torch.tensor([value])).sum())

    def on_first(self, act: Callable[[], T]) -> T | None:
        if not self.is_first:
            if sentence := self._hear(None):
                raise UserError(sentence)
            return None
        try:
            result = act()
        except Exception as error:
            self._hear(sentence_of(error) or repr(error))
            raise
        self._hear("")
        return result

    def first_says(self, number: int) -> int:
        return int(self._exchange(torch.tensor([number]))[0])

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for tensor in tensors:
            by_kind[tensor.device, tensor.dtype].append(tensor)
        for alike in by_kind.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            dist.all_reduce(flat)
            for tensor, summed in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def _exchange(self, own: Tensor) -> Tensor:
        """A row from every rank, all of the same length."""
        rows = own.new_empty(self.world, own.numel())
        dist.all_gather(list(rows.unbind()), own)
        return rows

    def _hear(self, text: str | None) -> str:
        """The text of the first rank, on every rank."""
        texts = [text]
        dist.broadcast_object_list(texts, src=0, device=torch.device("cpu"))
        return str(texts[0])
