"""Controls of the memory's content, on a run that has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rich.console import Console

from tests.conftest import tiny_config
from trc2 import CortexNet, RunConfig
from trc2.backbones.registry import build_model
from trc2.config.baselines import TransformerConfig
from trc2.errors import UserError
from trc2.runs.target import find_target
from trc2.training.memory_control import apply_control, memory_bytes, shuffle_slots
from trc2.training.scoring import score_target
from trc2.training.start import start_run


def test_shuffling_moves_contents_but_not_keys_and_only_what_is_read() -> None:
    net = CortexNet(tiny_config(memory_next_token=True, memory_slots=10, memory_read_window=10))
    memory = net.cortex.hippocampus
    memory.write(torch.randn(6, 16), notes={"following": torch.arange(6)})
    keys, values = memory.keys.clone(), memory.values.clone()
    shuffle_slots(memory)
    order = memory.following[:6]
    assert sorted(order.tolist()) == list(range(6)) != order.tolist()
    assert torch.equal(memory.keys, keys)
    assert torch.equal(memory.values[:6], values[order])
    assert torch.equal(memory.values[6:], values[6:])
    assert memory_bytes(memory) == 10 * (4 * 5 + 4 * 16 + 8)


def test_a_run_is_scored_with_every_control(tiny_run: Callable[..., RunConfig]) -> None:
    config = tiny_run(
        model={"memory_next_token": True, "memory_reservoir_slots": 8},
        eval={"every_steps": 12, "max_batches": 1, "text_sequences": 0, "fence": False},
    )
    target = find_target(str(start_run(config, Console(quiet=True))))
    scores = {
        control: score_target(target, warn=print, memory=control)["fruit"]["perplexity"]
        for control in ("read", "off", "shuffled")
    }
    assert len(set(scores.values())) == 3
    cached = score_target(target, warn=print, memory="cache")["fruit"]
    assert 0.0 < cached["cache_weight"] < 1.0  # sentences of four words: what followed them is worth something
    assert cached["perplexity"] < scores["off"]
    with pytest.raises(UserError, match="--memory cache is filled by a run's own training text"):
        score_target(target, warn=print, memory="cache", files=[target.folder / "config.yaml"], tasks=["fruit"])


def test_a_model_without_a_memory_has_nothing_to_control() -> None:
    net = build_model(TransformerConfig(vocab_size=8, d_model=8, num_layers=1, num_heads=2))
    apply_control(net, "read")
    with pytest.raises(UserError, match="no episodic memory"):
        apply_control(net, "shuffled")
