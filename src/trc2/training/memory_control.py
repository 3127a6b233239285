"""Does what is in a memory matter? The same model with its slots shuffled, without them, or with a cache instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig
from trc2.errors import UserError
from trc2.metrics.ngram_cache import ORDERS, WEIGHTS, NGramCache, mixed_nll, perplexity
from trc2.model.cortex import Cortex
from trc2.model.hippocampus import Hippocampus
from trc2.nn.keyed import keyed_generator
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.stream.batches import SplitWindows
from trc2.training.evaluate import evaluation_mode
from trc2.training.feed import Feed

MemoryControl = Literal["read", "off", "shuffled", "cache"]


def memory_to_control(model: Backbone) -> Hippocampus:
    """The model's memory; one without is refused, because nothing would be compared."""
    memory = model.trunk.hippocampus if isinstance(model.trunk, Cortex) else None
    if memory is None:
        raise UserError(
            f"This model ({model.config.name}) has no episodic memory to control: leave --memory at read, or name a "
            "trc2 model with model.memory=true."
        )
    return memory


def apply_control(model: Backbone, control: MemoryControl) -> None:
    """Change a loaded model's memory in place: events forgotten, or what they hold permuted across their keys."""
    if control == "read":
        return
    memory = memory_to_control(model)
    if control == "shuffled":
        shuffle_slots(memory)
    else:
        memory.forget()


@torch.no_grad()
def shuffle_slots(memory: Hippocampus, seed: int = 0) -> None:
    """Give every readable slot's value and next token to another key: a content that is as good as any, misplaced."""
    slots = memory.readable()
    order = slots[torch.randperm(len(slots), generator=keyed_generator("shuffled slots", seed))]
    for name in ("values", *memory.notes):
        tensor = memory.get_buffer(name)
        tensor[slots.to(tensor.device)] = tensor[order.to(tensor.device)]


def memory_bytes(memory: Hippocampus) -> int:
    """What a reader may see of the memory: keys, values and next tokens."""
    tensors = [memory.keys, memory.values, *(memory.get_buffer(name) for name in memory.notes)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def score_with_cache(
    model: Backbone,
    feed: Feed,
    tasks: Mapping[str, SplitWindows],
    split: str,
    config: EvalConfig,
    device: torch.device,
) -> dict[str, dict[str, float]]:
    """Perplexity of the model without memory but with an n-gram cache of as many bytes, filled by the same steps.

    Order and weight are the best ones in hindsight, over all tasks together: the cache is not to lose for want of
    tuning. `cache_order` and `cache_weight` say which.
    """
    memory = memory_to_control(model)
    caches = [NGramCache(order, memory_bytes(memory)) for order in ORDERS]
    memory.forget()
    for step in range(min(int(model.clock.step), feed.plan.total_steps)):
        for batch in feed.batches(step):
            for cache in caches:
                cache.offer(batch.x, batch.y)
    sums = {name: torch.zeros(len(ORDERS), len(WEIGHTS), dtype=torch.float64) for name in tasks}
    counted = dict.fromkeys(tasks, 0)
    with evaluation_mode(model):
        for name, windows in tasks.items():
            for batch in windows.eval_batches(split, config.batch_size, config.max_batches):
                nll = model.predict(batch.x.to(device), batch.y.to(device)).nll.cpu()
                labelled = batch.y != IGNORE_INDEX
                counted[name] += int(labelled.sum())
                for i, cache in enumerate(caches):
                    p, known = cache.probability(batch.x, batch.y)
                    for j, weight in enumerate(WEIGHTS):
                        sums[name][i, j] += mixed_nll(nll, p, known & labelled, weight)[labelled].sum()
    mean = torch.stack([sums[name] / max(1, counted[name]) for name in tasks]).mean(dim=0)
    order, weight = divmod(int(mean.argmin()), len(WEIGHTS))
    return {
        name: {
            "perplexity": perplexity(float(sums[name][order, weight]), counted[name]),
            "cache_order": float(ORDERS[order]),
            "cache_weight": WEIGHTS[weight],
        }
        for name in tasks
    }
