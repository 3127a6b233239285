"""No strategy: the backbone alone."""

from __future__ import annotations

from typing import Literal

from trc2.config import StrategyConfig
from trc2.strategies.base import Strategy


class Settings(StrategyConfig):
    name: Literal["none"] = "none"


build = Strategy
