"""Curves drawn with a Gaussian over neighbouring points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from trc2.errors import UserError


def gaussian_smooth(series: Sequence[tuple[float, float]], sigma: float) -> list[tuple[float, float]]:
    """A curve of (step, value) with less noise: y_i = Σ_j w_ij v_j / Σ_j w_ij, w_ij = exp(−(i − j)² / 2σ²).

    The paper says "Gaussian smoothed means across runs" of two text-metric curves and nothing else: not σ, not its
    unit, not the edges, not whether its bands are smoothed. Here σ counts points, so unevenly spaced steps are smoothed
    by rank, and a wide gap in steps is no barrier. At the edges the weights that fall outside are left out of both
    sums: a constant stays constant, while a slope is flattened there. Beyond 4σ weights are 0.
    NaN or infinity makes every point within that reach NaN. For drawing only: never test or average smoothed values.
    """
    if not 0 <= sigma < float("inf"):
        raise UserError(f"sigma={sigma} is no width: choose a number of points, 0 for none.")
    steps = [step for step, _ in series]
    for before, after in itertools.pairwise(steps):
        if not before < after:
            raise UserError(
                f"Step {after} comes after step {before}: steps must ascend, sort the series and keep one of each."
            )
    if sigma == 0 or not steps:
        return list(series)
    values = np.array([value for _, value in series], dtype=np.float64)
    values[~np.isfinite(values)] = np.nan
    reach = min(int(4 * sigma), len(steps) - 1)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    inside = slice(reach, reach + len(steps))
    smooth = np.convolve(values, weights)[inside] / np.convolve(np.ones_like(values), weights)[inside]
    return list(zip(steps, smooth.tolist(), strict=True))
