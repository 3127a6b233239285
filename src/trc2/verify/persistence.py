"""C: what was written stays, and can be read, across evaluation."""

from __future__ import annotations

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.verify.check import Check, ModelUnderTest, changed, gap, memory_of, skipped, state_of, train_step

MAX_STEPS = 20


def memory_persists(tested: ModelUnderTest) -> list[Check]:
    """Train until something is written, evaluate, and look for it: the count, the readout, the logits."""
    name, claim = "memory count after eval", "events lost or gained by evaluating"
    if not tested.has_memory:
        return skipped("C", name, claim, "no memory")
    model, probe = tested.fresh(), tested.tokens("probe")
    memory = memory_of(model)
    assert memory is not None
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(MAX_STEPS):
        train_step(model, [(tested.tokens(f"batch {step}"), tested.tokens(f"targets {step}"))], optimizer)
        if memory.count > 0:
            break
    written = memory.count
    before = state_of(memory)
    model.eval()
    with torch.no_grad():
        logits, _ = model(probe)
    checks = [
        Check("C", "something was written", f"events after at most {MAX_STEPS} steps", float(written), ">", 0.0),
        Check("C", name, claim, float(abs(memory.count - written)), "==", 0.0),
        Check("C", "memory content after eval", "tensors of the memory an evaluation changed",
              changed(before, state_of(memory)), "==", 0.0),
    ]  # fmt: skip
    names = ("readout of written memory", "logits with written memory")
    claims = (
        "distance of the readout from that of an empty memory",
        "distance of the logits from those without memory",
    )
    if not memory.has_readout:
        return checks + [c for n, k in zip(names, claims, strict=True) for c in skipped("C", n, k, "no late column")]
    # The same weights with the events taken away: only the memory differs.
    amnesic = ModelUnderTest(model).fresh("empty").eval()
    read, blank = _readout(model, probe), _readout(amnesic, probe)
    with torch.no_grad():
        amnesic_logits, _ = amnesic(probe)
    return [
        *checks,
        Check("C", names[0], claims[0], gap(read, blank), ">", 0.0),
        Check("C", names[1], claims[1], gap(logits, amnesic_logits), ">", 0.0),
    ]


def _readout(model: Backbone, probe: Tensor) -> Tensor:
    """R at the real injection point, caught on its way into the output map. Zeros where nothing was read."""
    memory = memory_of(model)
    assert memory is not None
    caught: list[Tensor] = []
    handle = memory.output.register_forward_hook(lambda _m, inputs, _o: caught.append(inputs[0]))
    with torch.no_grad():
        model(probe)
    handle.remove()
    return caught[0] if caught else torch.zeros(probe.numel(), memory.values.shape[1], dtype=memory.values.dtype)
