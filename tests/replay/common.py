from __future__ import annotations

from tests.conftest import tiny_config
from trc2.replay.stores import ReplayStores


def stores_of(recent: int, long: int, chunk_length: int, **settings: object) -> ReplayStores:
    """Empty stores of these sizes; `settings` are those of the model, without `replay_`."""
    sizes = {"recent_chunks": recent, "long_chunks": long, "chunk_length": chunk_length}
    defaults = {"coefficient": 0.05, "batch_size": 4, "share": None}
    return ReplayStores(tiny_config(**{f"replay_{name}": v for name, v in {**defaults, **sizes, **settings}.items()}))
