"""Training on several ranks: with a copy of the model on each rank, or with divided tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from trc2.backbones.shell import Backbone
from trc2.distributed.group import Ranks
from trc2.distributed.sharded import divide_like, is_divided, put_together
from trc2.errors import UserError
from trc2.nn.host import HostState
from trc2.strategies.base import plain_gradients


class Parallel:
    """One process: the model is called as it is, and its gradients are those of the step.

    Losses are weighted for the whole step already, so the gradients of ranks are added, not averaged.
    """

    is_divided = False

    def __init__(self, model: Backbone) -> None:
        self.model = model

    def begin_step(self, first: int) -> None:
        """`first` is the number of this rank's first micro-batch among all micro-batches of the step."""
        self.model.begin_step(first)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor | None, dict[str, Tensor]]:
        """A training forward."""
        return self.model(*args, **kwargs)

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        """Context of forward and backward of one micro-batch. The last of a step adds the gradients of all ranks."""
        yield

    def clip(self, limit: float, *, critic_apart: bool) -> dict[str, float]:
        """Scale the gradients down to a norm of `limit` if it is larger. Returns the norms before, by group.

        The critic's gradient is often the larger one. Clipped together, it would shrink the steps of the network.
        """
        network, critic = self._network_and_critic if critic_apart else (list(self.model.parameters()), [])
        norms = {"gradient_norm": self._clip(network, limit)}
        if critic:
            norms["gradient_norm_critic"] = self._clip(critic, limit)
        return norms

    @cached_property
    def _network_and_critic(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        names, named = set(self.model.critic_tensors()), list(self.model.named_parameters())
        return [p for name, p in named if name not in names], [p for name, p in named if name in names]

    def _clip(self, parameters: list[nn.Parameter], limit: float) -> float:
        return float(nn.utils.clip_grad_norm_(parameters, limit))

    def gradients_of(self, loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """∂loss/∂θ of a loss that every rank computes alike. Leaves the step's own gradients as they are."""
        return plain_gradients(loss, parameters)

    def divide(self, tensors: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """The tensors of a checkpoint as this rank holds them: all of them, whole."""
        return tensors


class DataParallel(Parallel):
    """A copy of the model on every rank. DDP adds the gradients while the last backward pass still runs.

    Every tensor of DDP gets a gradient in every step, possibly zeros (`trc2.ops.zero_gradient`). Tensors that no loss
    can reach are left out by name, so DDP does not have to search for unused tensors. If a task boundary changes which
    tensors learn, as with LoraDRS, the next step makes a new DDP.
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
    idle = {*model.unused_parameters(), *model.untrained_parameters()}
    return [name for name, p in model.named_parameters() if p.requires_grad and name not in idle]


def _distribute(model: Backbone, learning: list[str]) -> DistributedDataParallel:
    names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    # This has no public interface in torch. Buffers are not broadcast: memory and stores are the same on all ranks.
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


class Divided(Parallel):
    """FSDP: every rank holds some rows of each column or block, and the whole of one only while it runs.

    Embedding and head, mostly one tensor, are a unit of the shell: they are whole throughout a forward pass. Everything
    else is small and stays whole on every rank: norms, the thalamic router, and all of the memory, whose maps a commit
    needs between passes. The gradients of what is whole are added up by hand, in one message, after the last backward
    pass of a step.
    """

    is_divided = True

    def __init__(self, model: Backbone, ranks: Ranks, device: torch.device) -> None:
        """The model may still be on the host: one unit after the other is moved to the device and divided."""
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        super().__init__(model)
        self.ranks = ranks
        mesh = init_device_mesh(device.type, (ranks.world,))
        units = model.units()
        for unit in units:
            fully_shard(unit, mesh=mesh)
        tables = {id(table) for table in model.tables()}
        whole = {p for p in model.parameters() if id(p) not in tables and not is_divided(p)}
        # Divided again after every forward pass, also one without a backward pass: an evaluation must leave no trace.
        fully_shard(model, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
        for module in (*units, model):
            module.set_gradient_divide_factor(1.0)  # type: ignore[operator]
            module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator] # gloo can only add float32
        register_fsdp_forward_method(model, "predict")
        model.to(device)  # what is whole
        for host in (module for module in model.modules() if isinstance(module, HostState)):
            for buffer in host.buffers():  # FSDP moved them along
                buffer.data = buffer.data.cpu()

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        yield
        if is_last:
            whole, _ = _by_kind(self.model.parameters())
            self.ranks.add_up([p.grad for p in whole if p.grad is not None])

    def _clip(self, parameters: list[nn.Parameter], limit: float) -> float:
        whole, divided = _by_kind(parameters)
        norms = [nn.utils.get_total_norm([p.grad for p in whole if p.grad is not None])]
        if divided:
            norms.append(put_together(nn.utils.get_total_norm([p.grad for p in divided if p.grad is not None])))
        norm = torch.linalg.vector_norm(torch.stack(norms))
        for alike in (whole, divided):
            nn.utils.clip_grads_with_norm_(alike, limit, norm)
        return float(norm)

    def gradients_of(self, loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """FSDP has its own tensors in the graph, so the gradients are taken from where a backward pass leaves them.

        All ranks computed the same, so the sums over ranks are `world` times too large.
        """
        own = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        self.model.set_requires_gradient_sync(True)  # type: ignore[operator]
        loss.backward()
        gradients = [p.grad if p.grad is None or not is_divided(p) else p.grad / self.ranks.world for p in parameters]
        for parameter, gradient in zip(parameters, own, strict=True):
            parameter.grad = gradient
        return gradients

    def divide(self, tensors: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """This rank's rows of what is divided: of the model's tensors, and of optimizer and strategy for each."""
        named = dict(self.model.named_parameters())
        numbered = {
            n: p for group in optimizer.param_groups for n, p in zip(group["numbers"], group["params"], strict=True)
        }
        result = {}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            inner, _, last = rest.partition(".")
            like = {"model": named.get(rest), "strategy": named.get(last)}.get(part)
            if part == "optimizer" and inner.isdigit():
                like = numbered.get(int(inner))
            result[name] = tensor if like is None else divide_like(tensor, like)
        return result


def _by_kind(parameters: Iterable[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Whole and divided parameters: torch's functions over many tensors take only like with like."""
    parameters = list(parameters)
    return [p for p in parameters if not is_divided(p)], [p for p in parameters if is_divided(p)]


def build_parallel(model: Backbone, ranks: Ranks, kind: str, dtype: torch.dtype, device: torch.device) -> Parallel:
    """How this model learns on these ranks. Moves it to the device: the whole of it, or this rank's rows."""
    if ranks.world == 1 or kind == "ddp":
        model.to(device)
        return Parallel(model) if ranks.world == 1 else DataParallel(model)
    if model.config.is_quantized:
        raise UserError("output.parallel=fsdp cannot divide weights of 4 bits: use ddp, or leave model.quantize out.")
    if not model.units():
        raise UserError(
            f"output.parallel=fsdp does not suit model={model.config.name}, which cannot be divided: use ddp."
        )
    from torch.distributed.fsdp import FSDPModule  # half as slow to import as torch: only for who divides

    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise UserError(f"output.parallel=fsdp needs a newer torch than {torch.__version__}: use ddp, or update torch.")
    if dtype == torch.float16:
        raise UserError("output.parallel=fsdp cannot scale losses, which float16 needs: use ddp or another precision.")
    return Divided(model, ranks, device)
