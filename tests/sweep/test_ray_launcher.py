"""A sweep through a local Ray: the same runs, and a cancelled one has saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from trc2.config import RunConfig, settings_text
from trc2.runs.folder import RunFolder
from trc2.sweep.matrix import Matrix
from trc2.sweep.ray_launcher import RayLauncher
from trc2.sweep.run import run_sweep
from trc2.sweep.status import standing

ray = pytest.importorskip("ray", reason="ray is an extra: pip install 'trc2[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the warnings are Ray's own


@pytest.fixture
def launcher() -> Iterator[RayLauncher]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield RayLauncher(2, threads=1)
    ray.shutdown()


def test_runs_end_and_a_cancelled_one_goes_on(
    tiny_run: Callable[..., RunConfig], tmp_path: Path, launcher: RayLauncher
) -> None:
    recipe, out = tmp_path / "tiny.yaml", tmp_path / "sweep"
    tasks = [{**task.model_dump(), "steps": 60} for task in tiny_run().stream.tasks]  # type: ignore[union-attr]
    config = tiny_run(stream={"tasks": tasks}, eval={"every_steps": 60})
    recipe.write_text(settings_text(config.model_dump(mode="json")))
    cells = Matrix(grids=[{"recipes": [str(recipe)], "settings": ["output.checkpoint_every=2"]}]).cells()
    folder = RunFolder(out / cells[0].name)
    launcher.start(cells[0].name, cells[0].command(folder.path), 1, out / "log")
    deadline = time.monotonic() + 120
    while not (folder.has_metrics and b'"train"' in folder.metrics_file.read_bytes()) and time.monotonic() < deadline:
        assert launcher.ended() == {}
        time.sleep(0.01)
    launcher.stop()
    assert standing(cells[0], out).state == "begun"
    assert list(folder.checkpoints.iterdir())  # it was asked to stop, not killed

    outcome = run_sweep(cells, out, launcher, Console(quiet=True))
    assert [found.state for found in outcome.values()] == ["ended"]
