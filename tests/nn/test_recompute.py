"""Running a column again instead of keeping what it computed changes neither losses nor what is remembered."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.conftest import excited, fill_memory, tiny_config, tokens
from trc2 import CortexNet
from trc2.backbones.registry import build_model
from trc2.backbones.shell import Backbone
from trc2.config import model_config

SMALL = {"vocab_size": 29, "d_model": 16, "num_heads": 4, "num_layers": 3, "max_positions": 64}


def models(recompute: bool) -> list[Backbone]:
    """TRC² with a filled memory, replay and dropout. A baseline of every way to run blocks."""
    cortex = excited(CortexNet(tiny_config(dropout=0.2)))
    fill_memory(cortex, 10)
    names: list[dict[str, object]] = [{"name": "moe"}, {"name": "blk_attn_res", "num_residual_blocks": 2}]
    found: list[Backbone] = [cortex]
    for extra in names:
        found.append(build_model(model_config({**SMALL, **extra}), torch.Generator().manual_seed(0)))
    for model in found:
        model.train().trunk.recompute = recompute
    return found


def kept_bytes(model: Backbone, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The loss of a micro-batch, and how much it keeps for its backward pass besides the model itself."""
    owned = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _, aux = model(x, y, return_logits=False)
    return aux["loss"], sum(kept.values())


@pytest.mark.parametrize("index", [0, 1, 2])
def test_recomputing_changes_nothing_but_the_bytes_kept(index: int) -> None:
    plain, again = models(recompute=False)[index], models(recompute=True)[index]
    x, y = tokens(tiny_config(), 4, 40, seed=1), tokens(tiny_config(), 4, 40, seed=2)
    found = []
    for model in (plain, again):
        sizes = []
        for _ in range(2):  # the second step replays what the first one stored
            torch.manual_seed(3)
            model.zero_grad()
            loss, size = kept_bytes(model, x, y)
            loss.backward()
            model.commit()
            model.after_step()
            sizes.append(size)
        state = {**model.state_dict(), **{f"{name}.grad": p.grad for name, p in model.named_parameters()}}
        found.append((float(loss.detach()), sizes, state))
    (loss, sizes, state), (loss_again, sizes_again, state_again) = found
    assert loss == loss_again
    for name, tensor in state.items():
        other = state_again[name]
        assert (tensor is None) == (other is None), name
        assert tensor is None or torch.equal(tensor, other), name
    assert max(sizes_again) < 0.5 * min(sizes)
