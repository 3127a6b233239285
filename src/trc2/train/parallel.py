"""How the gradients of several ranks become one: by a copy of the model on each, or by dividing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trc2.backbones.shell import Backbone
from trc2.ranks import Ranks


class Parallel:
    """One process: the model is called as it is, and its gradients are those of the step.

    Losses are weighed for the whole step before they get here, so the gradients of ranks are added, never averaged.
    """

    def __init__(self, model: Backbone) -> None:
        self.model = model

    def begin_step(self, first: int) -> None:
        """`first` is the number, among all micro-batches of the step, of the first one here."""
        self.model.begin_step(first)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor | None, dict[str, Tensor]]:
        """A training forward."""
        return self.model(*args, **kwargs)

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch; the last one of a step brings all gradients together."""
        yield

    def clip(self, limit: float) -> float:
        """Scale all gradients down to a norm of `limit`, if it is larger; returns the norm as it was."""
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))


class DataParallel(Parallel):
    """A copy of the model on every rank; DDP adds the gradients up while the last backward pass still runs.

    Every tensor that DDP waits for gets a gradient in every step, if only zeros (`trc2.ops.zero_gradient`); those that
    no loss can reach are known by name and left out. So no graph is ever searched for unused tensors. Where a task
    boundary changes what learns, as with LoraDRS, the next step gets a new DDP.
    """

    def __init__(self, model: Backbone) -> None:
        super().__init__(model)
        self._ddp: DistributedDataParallel | None = None
        self._learning: list[str] = []

    def begin_step(self, first: int) -> None:
        super().begin_step(first)
        learning = reachable(self.model)
        if self._ddp is None or learning != self._learning:
            self._ddp, self._learning = _distribute(self.model, learning), learning

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor | None, dict[str, Tensor]]:
        assert self._ddp is not None, "begin_step comes first"
        return self._ddp(*args, **kwargs)

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        assert self._ddp is not None, "begin_step comes first"
        with nullcontext() if is_last else self._ddp.no_sync():
            yield


def reachable(model: Backbone) -> list[str]:
    """Names of the tensors that get a gradient in every step of this task."""
    idle = {*model.tensors_without_reader(), *model.tensors_waiting()}
    return [name for name, p in model.named_parameters() if p.requires_grad and name not in idle]


def _distribute(model: Backbone, learning: list[str]) -> DistributedDataParallel:
    names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    # torch's own place for this; it has no public one. No buffer is copied around: memory and stores are alike on all
    # ranks because all commit the same.
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, sorted(names - set(learning)))
    device = model.get_input_embeddings().weight.device
    ddp = DistributedDataParallel(
        model,
        device_ids=None if device.type == "cpu" else [device],
        init_sync=False,  # all ranks drew the same weights, or read them from the same checkpoint
        gradient_as_bucket_view=True,
    )
    ddp.register_comm_hook(None, lambda _, bucket: _add_up(bucket.buffer()))
    return ddp


def _add_up(gradients: Tensor) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def build_parallel(model: Backbone, ranks: Ranks) -> Parallel:
    """How this model learns on these ranks."""
    return Parallel(model) if ranks.world == 1 else DataParallel(model)
