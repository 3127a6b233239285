"""The paper's figures from runs. Each is a function of the roles that returns a `Figure` or raises `NotWritten`."""

from __future__ import annotations

from collections.abc import Callable

from studies.paper.figures import comparisons, inside, learning, orders, sizes
from studies.paper.figures.drawing import Subject
from trc2.system.plot_style import Figure

FIGURES: tuple[tuple[str, Callable[[Subject], Figure]], ...] = (
    ("Perplexity against size", sizes.perplexity_against_size),
    ("Text scores against size", sizes.text_against_size),
    ("Scores by width", sizes.scores_by_width),
    ("Efficiency frontier", comparisons.efficiency_frontier),
    ("Throughput and retention", comparisons.throughput_retention),
    ("Radar", comparisons.radar),
    ("Intervals of every family", comparisons.forest),
    ("Forgetting of every family", comparisons.area_by_family),
    ("Learning curves", learning.nine_curves),
    ("Hippocampal write dynamics", inside.hippocampus),
    ("Surprise, threshold and writes", inside.dynamics),
    ("Auxiliary losses", inside.auxiliary_losses),
    ("Forgetting in every order", orders.trajectories),
    ("Order robustness", orders.robustness),
    ("Order robustness by metric", orders.by_metric),
    ("Each task at the end of its own training, in every order", orders.at_window_completion),
    ("Causality and state", inside.causality),
)
