"""E: targets of any memory layout, and a gradient for every tensor that something reads."""

from __future__ import annotations

from trc2.verify.check import Check, ModelUnderTest, gap, largest, train_forward

PATHWAYS = (".thalamus.", ".hippocampus.", ".feedback.")


def target_layout(tested: ModelUnderTest) -> list[Check]:
    """Targets sliced or transposed out of a larger tensor give the loss of contiguous ones."""
    longer = tested.tokens("layout", length=tested.length + 1)
    x, sliced = longer[:, :-1], longer[:, 1:]
    transposed = sliced.T.contiguous().T
    assert not sliced.is_contiguous()
    assert not transposed.is_contiguous()
    losses = []
    for targets in (sliced.contiguous(), sliced, transposed):
        model = tested.fresh().train()
        _, aux = model(x, targets=targets)
        losses.append(aux["loss"].detach())
    worst = largest([gap(loss, losses[0]) for loss in losses[1:]])
    return [
        Check(
            "E",
            "target layout",
            "loss of non-contiguous targets less that of contiguous ones",
            worst,
            "<=",
            tested.rounding,
        )
    ]


def graph_coverage(tested: ModelUnderTest) -> list[Check]:
    """Trainable tensors without a gradient must be exactly the documented ones.

    With filled memory and stores every global pathway is active, so its gradients must also differ from zero: an
    anchored zero would otherwise hide a path that was cut.
    """
    checks = []
    for fill in tested.fills:
        model = tested.fresh(fill)
        train_forward(model, tested.tokens("batch"), tested.tokens("targets"))
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        without = {name for name, p in named if p.grad is None}
        documented = {*model.unused_parameters(), *model.untrained_parameters()}
        wrong = sorted(without ^ documented)
        note = "no gradient, as documented: " + (", ".join(sorted(without)) or "none")
        if wrong:
            note = "not as documented: " + ", ".join(wrong)
        label = tested.label("graph coverage", fill)
        claim = "tensors whose gradient is missing or unexpected"
        checks.append(Check("E", label, claim, float(len(wrong)), "==", 0.0, note))
        if fill == "filled":
            idle = [
                n for n, p in named if any(part in n for part in PATHWAYS) and p.grad is not None and not p.grad.any()
            ]
            idle_note = "zero gradient: " + ", ".join(idle) if idle else ""
            checks.append(
                Check("E", "pathways are live", "tensors of thalamus and hippocampus with a zero gradient",
                      float(len(idle)), "==", 0.0, idle_note)
            )  # fmt: skip
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad and p.grad is not None}
    checks.append(Check("E", "frozen tensors", "frozen tensors that got a gradient", float(len(frozen)), "==", 0.0))
    return checks
