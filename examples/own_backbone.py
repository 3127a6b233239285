"""Your own backbone: a recurrent mixer in our shell, proved causal, then trained with and without replay.

python examples/own_backbone.py [STEPS]
"""

import sys

import torch
from torch import Tensor, nn

from trc2.backbones.blocks import BaselineConfig, Block, BlockTrunk, DenseFeedForward
from trc2.backbones.shell import Backbone
from trc2.nn.decoding import State
from trc2.nn.init import init_weights
from trc2.nn.segments import Segment, rejoin
from trc2.verify.all_checks import run_checks


class MinimalGRU(nn.Module):
    """h_t = (1 − z_t) ∘ h_{t−1} + z_t ∘ W u_t,  z_t = σ(V u_t).  Padding has z = 0: as if it were not there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.candidate = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, u: Tensor, segments: tuple[Segment, ...], state: State | None = None) -> Tensor:
        z, new = torch.sigmoid(self.gate(u)), self.candidate(u)
        return rejoin([self.scan(part.of(z), part.of(new), part.valid, state) for part in segments])

    def scan(self, z: Tensor, new: Tensor, valid: Tensor | None, state: State | None) -> Tensor:
        z = z if valid is None else z * valid.unsqueeze(-1)
        hidden = new.new_zeros(new[:, 0].shape) if state is None or not state.tensors else state.tensors["hidden"]
        steps = [hidden := torch.lerp(hidden, new[:, t], z[:, t]) for t in range(new.shape[1])]
        if state is not None:  # decoding goes on from here
            state.tensors["hidden"] = hidden
        return torch.stack(steps, dim=1)

    def new_state(self) -> State:
        return State()


def build(config: BaselineConfig, rng: torch.Generator) -> Backbone:
    width, inner = config.d_model, config.ff_dim
    trunk = BlockTrunk(config, lambda: Block(config, MinimalGRU(width), DenseFeedForward(width, inner)))
    init_weights(trunk, config.num_layers, rng)
    return Backbone(config, trunk)


def sample(task: int, rows: int, rng: torch.Generator) -> Tensor:
    """Two little languages over 16 tokens: one counts up, one counts down."""
    return (torch.randint(16, (rows, 1), generator=rng) + (1 - 2 * task) * torch.arange(25)) % 16


def train(replay: bool, steps: int) -> None:
    rng = torch.Generator().manual_seed(0)
    sizes = {"vocab_size": 16, "d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 32, "max_positions": 32}
    stores = {"replay_chunk_length": 12, "replay_long_chunks": 256, "replay_coefficient": 0.5}
    net = build(BaselineConfig(name="minimal_gru", replay=replay, **sizes, **stores), rng)
    if replay:
        report = run_checks(net)
        print(f"{sum(check.passed is True for check in report.checks)} checks hold, {len(report.failed)} fail")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for task in (0, 1):
        for _ in range(steps):
            rows = sample(task, 16, rng)
            _, aux = net(rows[:, :-1], targets=rows[:, 1:], return_logits=False)
            optimizer.zero_grad()
            aux["loss"].backward()
            net.flush_pending_write()
            optimizer.step()
            net.update_slow_targets()
    with torch.no_grad():
        tests = [sample(task, 64, rng) for task in (0, 1)]
        losses = [float(net.eval()(rows[:, :-1], targets=rows[:, 1:])[1]["loss_lm"]) for rows in tests]
    print(f"replay {'on ' if replay else 'off'}: loss on the first task {losses[0]:.2f}, on the second {losses[1]:.2f}")


for replay in (True, False):
    train(replay, int(sys.argv[1]) if len(sys.argv) > 1 else 100)
