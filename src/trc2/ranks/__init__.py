"""The processes that train together: how they find each other, and what they may say."""

from trc2.ranks.group import ALONE, Ranks
from trc2.ranks.join import joined

__all__ = ["ALONE", "Ranks", "joined"]
