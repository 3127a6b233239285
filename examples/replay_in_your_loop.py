"""Replay and its controller in a training loop of your own, around a plain Hugging Face model.

    python examples/replay_in_your_loop.py [STEPS]

The model is a tiny Llama with random weights. `AutoModelForCausalLM.from_pretrained(...)` in its place works as well.
"""

import math
import sys

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from trc2.config import ReplayControlConfig
from trc2.replay.controller import ControllerState, ReplaySettings, steer
from trc2.replay.stores import ReplayStores

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def batch(task: int, rows: int = 16) -> Tensor:
    """Your data loader: here three little languages that count in steps of 1, 3 and 5."""
    return (torch.randint(32, (rows, 1)) + (1, 3, 5)[task] * torch.arange(33)) % 32


def loss_of(tokens: Tensor) -> Tensor:
    return model(input_ids=tokens, labels=tokens).loss


@torch.no_grad()
def perplexity(task: int) -> float:
    """On text that is set aside for the controller, and never trained on."""
    return math.exp(float(loss_of(held_out[task])))


held_out = [batch(task) for task in range(3)]
base = ReplaySettings(coefficient=0.1, batch_size=8, long_fraction=0.5)  # where the controller starts from
stores = ReplayStores(recent_chunks=64, long_chunks=512, chunk_length=16, batch_size=8, coefficient=0.1)
control = ReplayControlConfig(every_steps=10, coefficient_range=(0.0, 1.0), batch_range=(2, 16))
state, post = ControllerState(), {}

for task in range(3):
    for step in range(task * steps, (task + 1) * steps):
        rows = batch(task)
        loss = loss_of(rows)
        replayed = stores.sample(step, 0)  # None while the stores are empty
        if replayed is not None:
            loss = loss + float(stores.coefficient) * loss_of(replayed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stores.stage(rows)  # seen in this step, drawn from the next one on
        stores.commit(*stores.take_staged())
        if post and (step + 1) % control.every_steps == 0:
            now = {name: perplexity(int(name)) for name in post}
            state, trace = steer(control, base, state, now, post)
            chosen = trace.settings
            stores.set_strength(chosen.coefficient, chosen.batch_size, chosen.long_fraction)
            print(f"step {step + 1}: forgotten {trace.forgetting:.3f} nats, replay weight {chosen.coefficient:.2f}")
    post[str(task)] = perplexity(task)

for name, then in post.items():
    print(f"task {name}: perplexity {then:.2f} after its training, {perplexity(int(name)):.2f} at the end")
