"""Numbers as tables and sentences show them."""

from __future__ import annotations

import math


def number_text(value: float, spread: float = math.nan) -> str:
    """A number with two digits of its spread, or about four digits."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "NaN")
    if math.isfinite(spread) and spread > 0 and abs(value) < 1000:
        places = min(4, max(0, 1 - math.floor(math.log10(spread))))
    else:
        places = 3 if value == 0 else min(3, max(0, 3 - math.floor(math.log10(abs(value)))))
    text = f"{value:,.{places}f}" if abs(value) < 1e9 else f"{value:.3e}"
    if value != 0 and not text.strip("-0.,"):
        text = f"{value:.1g}"
    return text.replace("-", "−")


def short(value: float) -> str:
    """Three digits, or the whole number from 1,000 on. NaN and infinity as Python writes them."""
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}"


def quantity(value: float) -> str:
    """1234567 → 1.23M"""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.0f}"


def exponential(value: float) -> float:
    """e to the power of a logarithm, infinite where Python's own function raises an OverflowError."""
    return math.inf if value > 700 else math.exp(value)
