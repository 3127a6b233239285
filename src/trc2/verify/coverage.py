"""E: targets of any memory layout, and a gradient for every tensor that something reads."""

from __future__ import annotations

import torch

from trc2.verify.subject import EXACT, Check, Subject, gap, train_forward


def target_layout(subject: Subject) -> list[Check]:
    """Targets sliced or transposed out of a larger tensor give the loss of contiguous ones."""
    longer = subject.tokens("layout", length=subject.length + 1)
    x, sliced = longer[:, :-1], longer[:, 1:]
    transposed = sliced.T.contiguous().T
    assert not sliced.is_contiguous()
    assert not transposed.is_contiguous()
    losses = []
    for targets in (sliced.contiguous(), sliced, transposed):
        model = subject.fresh().train()
        _, aux = model(x, targets=targets)
        losses.append(aux["loss"].detach())
    worst = max(gap(loss, losses[0]) for loss in losses[1:])
    return [
        Check("E", "target layout", "loss of non-contiguous targets less that of contiguous ones", worst, "<=", EXACT)
    ]


def graph_coverage(subject: Subject) -> list[Check]:
    """Trainable tensors without a gradient must be exactly the documented ones."""
    checks = []
    for memory in subject.memories:
        model = subject.fresh(memory)
        train_forward(model, subject.tokens("batch"), subject.tokens("targets"))
        without = {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}
        documented = set(getattr(model, "tensors_without_reader", list)())
        surplus = sorted(without ^ documented)
        note = "no gradient, as documented: " + (", ".join(sorted(without)) or "none")
        if surplus:
            note = "not as documented: " + ", ".join(surplus)
        label = f"graph coverage ({memory} memory)" if subject.has_readout else "graph coverage"
        checks.append(
            Check("E", label, "tensors whose gradient is missing or unexpected", float(len(surplus)), "==", 0.0, note)
        )
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad and p.grad is not None}
    checks.append(Check("E", "frozen tensors", "frozen tensors that got a gradient", float(len(frozen)), "==", 0.0))
    assert torch.is_grad_enabled()
    return checks
