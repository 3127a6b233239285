"""Every figure in the order of the report: a function of the scope that returns a `Picture` or raises `LeftOut`."""

from __future__ import annotations

from collections.abc import Callable

from trc2.report.plots.against_size import perplexity_against_size, scores_by_width, text_against_size
from trc2.report.plots.canvas import Picture
from trc2.report.plots.curves import area_curves, perplexity_curves, text_curves
from trc2.report.plots.frontier import keeping_and_learning, loss_frontier, speed_and_retention, text_frontier
from trc2.report.plots.orders import area_by_order, areas_by_metric_and_order, boundary_by_order, order_robustness
from trc2.report.plots.organs import auxiliary_losses, steered_replay, write_dynamics
from trc2.report.plots.rankings import best_by_family, closed_distances, forest_of_differences, forest_of_scores, radar
from trc2.report.scope import Scope

FIGURES: tuple[tuple[str, Callable[[Scope], Picture]], ...] = (
    ("Perplexity against size", perplexity_against_size),
    ("Text scores against size", text_against_size),
    ("Efficiency frontier, text scores", text_frontier),
    ("Efficiency frontier, loss and forgetting", loss_frontier),
    ("Speed and retention", speed_and_retention),
    ("Learning and keeping", keeping_and_learning),
    ("Perplexity over the stream", perplexity_curves),
    ("Text scores over the stream", text_curves),
    ("Forgetting area over the stream", area_curves),
    ("Auxiliary losses", auxiliary_losses),
    ("Hippocampal dynamics", write_dynamics),
    ("Steered replay", steered_replay),
    ("Scores by width", scores_by_width),
    ("Radar", radar),
    ("Intervals of every arm", forest_of_scores),
    ("Paired differences", forest_of_differences),
    ("Distance from plain to joint, drawn", closed_distances),
    ("Best forgetting area of each family", best_by_family),
    ("Forgetting area in every order", area_by_order),
    ("Order robustness", order_robustness),
    ("Order robustness by metric", areas_by_metric_and_order),
    ("Task boundaries in every order", boundary_by_order),
)
