"""Shared fixtures; shapes in signatures are checked while the tests run."""

from __future__ import annotations

from jaxtyping import install_import_hook

CHECKED = ["trc2.nn", "trc2.model", "trc2.replay"]
install_import_hook(CHECKED, "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402

from trc2 import CortexNet, TRC2Config  # noqa: E402


def tiny_config(**changes: object) -> TRC2Config:
    """A complete TRC² small enough for loops over tokens."""
    settings: dict[str, object] = {
        "vocab_size": 29,
        "d_model": 16,
        "num_columns": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "max_positions": 64,
        "num_experts": 4,
        "d_ff": 12,
        "thalamic_rank": 6,
        "memory_slots": 10,
        "memory_key_dim": 5,
        "memory_top_k": 3,
        "memory_read_chunk": 4,
        "memory_read_window": 8,
        "writes_per_sequence": 3,
        "target_writes_per_sequence": 2,
        "gate_top_fraction": 0.3,
        "replay_recent_chunks": 4,
        "replay_long_chunks": 6,
        "replay_chunk_length": 5,
        "replay_batch_size": 3,
    }
    return TRC2Config(**{**settings, **changes})


def excited(net: CortexNet, seed: int = 0) -> CortexNet:
    """Give every parameter a size at which all nonlinearities matter; fresh weights of 0.02 hide most mistakes."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0.0, 0.5 if parameter.ndim > 1 else 0.3, generator=chance)
        if net.cortex.hippocampus is not None:
            for buffer in (net.cortex.hippocampus.keys, net.cortex.hippocampus.values):
                buffer.zero_()
    return net


def tokens(config: TRC2Config, batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def fill_memory(net: CortexNet, events: int, seed: int = 0) -> None:
    """Write random events, unit size per channel."""
    hippocampus = net.cortex.hippocampus
    assert hippocampus is not None
    chance = torch.Generator().manual_seed(seed)
    states = torch.randn(events, net.config.d_model, generator=chance, dtype=hippocampus.values.dtype)
    hippocampus.write(states)


@pytest.fixture(autouse=True)
def _fixed_chance() -> None:
    torch.manual_seed(0)
