"""Compiled parts give the numbers of the plain ones. Run in its own process: shape checks stop the compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import copy, torch
from trc2 import CortexNet, TRC2Config
from trc2.backbones.registry import compile_parts

config = TRC2Config(vocab_size=61, d_model=32, num_columns=3, num_heads=4, num_kv_heads=2, num_experts=4, d_ff=24,
                    memory_slots=32, memory_key_dim=8, max_positions=64, replay_chunk_length=8)
plain = CortexNet(config, torch.Generator().manual_seed(0)).train()
with torch.no_grad():
    for parameter in plain.parameters():
        parameter.mul_(5)
plain.cortex.hippocampus.write(torch.randn(20, 32, generator=torch.Generator().manual_seed(1)))
fast = copy.deepcopy(plain)
assert compile_parts(fast) > 5
assert fast.state_dict().keys() == plain.state_dict().keys()
x = torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(2))
for net in (plain, fast):
    net(x[:, :-1], x[:, 1:])[1]["loss"].backward()
gaps = [
    float((a.grad - b.grad).abs().max() / (a.grad.abs().max() + 1e-6))
    for a, b in zip(plain.parameters(), fast.parameters()) if a.grad is not None
]
print(len(gaps), max(gaps))
"""


@pytest.mark.slow
def test_gradients_are_equal() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    count, gap = done.stdout.split()
    assert int(count) > 50
    assert float(gap) < 1e-4
