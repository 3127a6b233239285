"""A server and its jobs are killed again and again, and nothing is lost. The whole proof is `tests.serving.kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.kills import prove


@pytest.mark.slow
def test_after_many_kills_files_versions_and_weights_are_those_of_a_quiet_server(
    tmp_path: Path, registry: str | None
) -> None:
    figures = prove(tmp_path / "proof", 6, options=() if registry is None else ("--registry", registry), pause=3)
    assert sum(figures["kills"].values()) == 6
    assert figures["acknowledged_files"] > 0
    assert figures["answers"] > 0
    assert figures["versions_equal_to_the_bit"] >= 2
