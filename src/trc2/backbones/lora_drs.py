"""LoRA-DRS: later tasks train low-rank maps on keys and values, with updates kept in a drift-resistant space."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.backbones import transformer
from trc2.backbones.blocks import AttentionMixer, BaselineConfig, BlockTrunk, dense_block
from trc2.backbones.costs import dense_activations
from trc2.backbones.input_checks import check_input
from trc2.backbones.shell import Backbone
from trc2.config.section import Fraction, Size
from trc2.errors import UserError
from trc2.nn.host import HostState
from trc2.nn.init import init_weights
from trc2.nn.segments import pack


class LoraDRSConfig(BaselineConfig):
    """A transformer whose later tasks train low-rank maps on keys and values, in a drift-resistant space."""

    name: Literal["lora_drs"] = "lora_drs"
    rank: Size = Field(4, description="rank of the maps that later tasks train")
    num_adapters: Size = Field(2, description="tasks after the first")
    freeze_backbone: bool = Field(
        True,
        description="whether the backbone is frozen after the first task. The method freezes it. The paper's "
        "numbers suggest false.",
    )
    normalize_projector: bool = Field(
        True, description="whether the projector is divided by its Frobenius norm, as in the method's code"
    )
    drs_threshold: Fraction = Field(0.99, description="share of singular values the space keeps")
    drs_batches: Size = Field(64, description="batches of a new task that define its space")

    @property
    def num_parts(self) -> int:
        return self.num_layers * (1 + self.num_adapters)

    @property
    def learns_other_weights_per_task(self) -> bool:
        return True

    def check_tasks(self, num_tasks: int) -> None:
        later = num_tasks - 1
        if later > self.num_adapters:
            raise ValueError(
                f"model.num_adapters={self.num_adapters} is too few for {later} tasks after the first: "
                f"set model.num_adapters={later}."
            )


UP_STD = 0.01


class Pair(nn.Module):
    """One task's low-rank maps ΔW_K = B_K A_K and ΔW_V = B_V A_V.

    `down` holds A_K and A_V, `up` holds B_K and B_V. A is drawn from ±1/√d, which is Kaiming-uniform with a=√5; every
    column of B has a single non-zero, so that a fresh pair changes little and yet A has a gradient at once.
    """

    def __init__(self, d_model: int, rank: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        bound = 1 / math.sqrt(d_model)
        self.down = nn.Parameter(torch.empty(2, rank, d_model).uniform_(-bound, bound, generator=generator))
        rows = torch.randint(d_model, (2, 1, rank), generator=generator)
        values = torch.empty(2, 1, rank).normal_(0.0, UP_STD, generator=generator)
        self.up = nn.Parameter(torch.zeros(2, d_model, rank).scatter_(1, rows, values))


class AdaptedProjection(nn.Linear):
    """[q k v] = W u + s Σ_{j < n} [0, B_K,j A_K,j u, B_V,j A_V,j u]

    n = `num_active` and s = `sign` follow from the network's task; s is −1 only in the subtraction pass.
    `projector` is the space T of the last pair of the sum.
    """

    projector: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, 3 * d_model, bias=False)
        self.pairs: Sequence[Pair] = nn.ModuleList()  # type: ignore[assignment]
        self.register_buffer("projector", torch.eye(d_model))
        self.num_active, self.sign = 0, 1.0

    def draw_pairs(self, count: int, rank: int, generator: torch.Generator | None) -> None:
        self.pairs = nn.ModuleList(Pair(self.in_features, rank, generator) for _ in range(count))  # type: ignore[assignment]

    def forward(self, u: Float[Tensor, "P D"]) -> Float[Tensor, "P 3D"]:
        qkv = super().forward(u)
        if self.num_active == 0:
            return qkv
        active = list(self.pairs)[: self.num_active]
        down = torch.cat([pair.down for pair in active], dim=1).flatten(0, 1)
        up = torch.block_diag(*torch.cat([pair.up for pair in active], dim=2))
        # Zero rows for the queries: one thin product into all of qkv is cheaper than taking it apart.
        up = F.pad(up, (0, 0, self.in_features, 0))
        return torch.addmm(qkv, F.linear(u, down), up.T, alpha=self.sign)

    def copy_trained(self) -> tuple[Tensor, Tensor]:
        """A and B of the pair that learns, as they are now."""
        pair = self.pairs[self.num_active - 1]
        return pair.down.detach().clone(), pair.up.detach().clone()

    @torch.no_grad()
    def project_update(self, down: Float[Tensor, "2 R D"], up: Float[Tensor, "2 D R"]) -> None:
        """A ← A_old + (A − A_old) T and B ← B_old + T (B − B_old)"""
        pair = self.pairs[self.num_active - 1]
        pair.down.copy_(down + (pair.down - down) @ self.projector)
        pair.up.copy_(up + self.projector @ (pair.up - up))


class AdaptedAttention(AttentionMixer):
    """Attention whose keys and values have low-rank additions."""

    def __init__(self, config: LoraDRSConfig) -> None:
        super().__init__(config)
        self.qkv: AdaptedProjection = AdaptedProjection(config.d_model)


class LoraDRSNet(Backbone[LoraDRSConfig, BlockTrunk]):
    """Task 0 trains the backbone. Task t ≥ 1 adds pair t−1 to keys and values and trains it inside a space of its own.

    The new task's tokens span the space, at the input of each attention, with the older pairs subtracted.
    Adam's finished update is projected, not the gradient: `before_step` copies the pair, and `after_step` projects the
    change that `optimizer.step()` made.
    """

    def __init__(self, config: LoraDRSConfig, trunk: BlockTrunk) -> None:
        super().__init__(config, trunk)
        self.stage = HostState("task")  # the number of the current task, from 0
        self._before_step: list[tuple[Tensor, Tensor]] | None = None
        self.sync_from_buffers()
        self.register_load_state_dict_post_hook(_follow_loaded_task)

    @property
    def task(self) -> int:
        return int(self.stage.get_buffer("task"))

    @property
    def projections(self) -> list[AdaptedProjection]:
        """The adapted maps, from the first layer to the last."""
        return [module for module in self.trunk.modules() if isinstance(module, AdaptedProjection)]

    # ------------------------------------------------------------------------------------------------- task boundaries

    def begin_task(self, index: int, batches: Iterable[Tensor]) -> None:
        """Compute the spaces of task `index` from some of its token batches, then add its pair and let it learn."""
        limit = self.config.num_adapters
        if index > limit:
            raise UserError(
                f"Task {index}, counted from 0, has no adapter left because model.num_adapters={limit}: build the "
                f"model with model.num_adapters={index} or more, one for each task after the first."
            )
        if index > 0:
            threshold, normalize = self.config.drs_threshold, self.config.normalize_projector
            moments = self.subtraction_pass(index - 1, batches)
            spaces = [drift_resistant_space(moment, threshold, normalize) for moment in moments]
            for layer, space in zip(self.projections, spaces, strict=True):
                layer.projector.copy_(space)
        self.stage.get_buffer("task").fill_(index)
        self.sync_from_buffers()

    @torch.no_grad()
    def subtraction_pass(self, num_pairs: int, batches: Iterable[Tensor]) -> list[Float[Tensor, "D D"]]:
        """Ξ = mean of u uᵀ over the inputs u of every attention, in the network of W − Σ_{j < num_pairs} B_j A_j.

        Every layer gets the output of the layers below it with their pairs subtracted too. Without a token, Ξ is NaN.
        """
        d_model, device = self.config.d_model, self.trunk.embedding.weight.device
        sums = [torch.zeros(d_model, d_model, dtype=torch.float64, device=device) for _ in self.trunk.blocks]
        num_tokens = 0
        with self._subtracting(num_pairs):
            for batch in islice(batches, self.config.drs_batches):
                check_input(self.config, batch)
                packed = pack([batch.to(device)])
                hidden = self.trunk.embed(packed)
                num_tokens += batch.numel()
                for block, total in zip(self.trunk.blocks, sums, strict=True):
                    u = block.mixer_norm(hidden).double()
                    total += u.T @ u
                    hidden, _ = block(hidden, packed.segments, packed.counted, None)
        return [total / num_tokens for total in sums]

    @contextmanager
    def _subtracting(self, num_pairs: int) -> Iterator[None]:
        """Run the trunk in evaluation mode with some pairs subtracted, then restore it."""
        modes = [(module, module.training) for module in self.trunk.modules()]
        layers = [(layer, layer.num_active, layer.sign) for layer in self.projections]
        self.trunk.eval()
        try:
            for layer, _, _ in layers:
                layer.num_active, layer.sign = num_pairs, -1.0
            yield
        finally:
            for layer, num_active, sign in layers:
                layer.num_active, layer.sign = num_active, sign
            for module, mode in modes:
                module.training = mode

    def sync_from_buffers(self) -> None:
        """Set which pairs are added and which tensors learn, both of which follow from the task.

        At task 0 nothing is frozen. The pairs are not added, so they get no gradient, but an optimizer made now holds
        them. Frozen tensors lose their gradients, because optimizers would otherwise move them by decay and momentum.
        """
        task, self._before_step = self.task, None
        self.requires_grad_(task == 0 or not self.config.freeze_backbone)
        for layer in self.projections:
            layer.num_active = task
            for index, pair in enumerate(layer.pairs):
                pair.requires_grad_(task == 0 or index == task - 1)
        for parameter in self.parameters():
            if not parameter.requires_grad:
                parameter.grad = None

    def units(self) -> list[nn.Module]:
        """Empty: updates are projected as whole matrices, and another task trains other tensors."""
        return []

    def untrained_parameters(self) -> list[str]:
        """Names of the tensors of pairs whose task has not begun. No loss can reach them yet."""
        return self._pair_names(self.task)

    def tensors_without_decay(self) -> list[str]:
        """Those of the trunk, and the tensors of all pairs."""
        return [*super().tensors_without_decay(), *self._pair_names(0)]

    def _pair_names(self, first: int) -> list[str]:
        """Names of the tensors of every layer's pairs from the `first` on."""
        pairs = [pair for layer in self.projections for pair in list(layer.pairs)[first:]]
        members = {parameter for pair in pairs for parameter in pair.parameters()}
        return [name for name, parameter in self.named_parameters() if parameter in members]

    # ------------------------------------------------------------------------------------------------------- step ends

    def before_step(self) -> None:
        """Copy the pair that learns, as it is before the step."""
        self._before_step = [layer.copy_trained() for layer in self.projections] if self.task > 0 else None

    def discard(self) -> None:
        self._before_step = None
        super().discard()

    def after_step(self) -> None:
        """Project the update that `optimizer.step()` made to the pair that learns."""
        if self._before_step is not None:
            for layer, before in zip(self.projections, self._before_step, strict=True):
                layer.project_update(*before)
            self._before_step = None
        super().after_step()


def drift_resistant_space(moment: Float[Tensor, "D D"], threshold: float, normalize: bool) -> Float[Tensor, "D D"]:
    """T = P Pᵀ of the leading eigenvectors whose eigenvalues sum to `threshold` of all, at least one of them.

    Divided by ‖P Pᵀ‖_F if `normalize`. Without a token, or with a moment that is not finite, T = I.
    """
    energy = float(moment.trace())
    if not (math.isfinite(energy) and energy > 0):
        return torch.eye(moment.shape[0], dtype=moment.dtype, device=moment.device)
    values, vectors = torch.linalg.eigh(moment)
    reached = values.flip(0).clamp_min(0).cumsum(0)
    kept = int((reached < threshold * reached[-1]).sum()) + 1
    basis = vectors[:, -kept:]
    space = basis @ basis.T
    return space / torch.linalg.matrix_norm(space) if normalize else space


def _follow_loaded_task(net: nn.Module, _keys: object) -> None:
    """Run after `load_state_dict`, which also passes the names that did not fit."""
    assert isinstance(net, LoraDRSNet)
    net.sync_from_buffers()


def build(config: LoraDRSConfig, generator: torch.Generator | None = None) -> LoraDRSNet:
    """4d² of attention and 8d² of SwiGLU, rounded up, per block, and 4rd for each of its pairs.

    Pairs are drawn last, so that the backbone is the same however many there are.
    """
    trunk = BlockTrunk(config, lambda: dense_block(config, AdaptedAttention(config)))
    init_weights(trunk, config.num_layers, generator)
    net = LoraDRSNet(config, trunk)
    for layer in net.projections:
        layer.draw_pairs(config.num_adapters, config.rank, generator)
    return net


cost = transformer.cost  # of the first task, in which nothing is frozen
activations = dense_activations
Config = LoraDRSConfig
