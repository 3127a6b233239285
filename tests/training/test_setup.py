"""Where a run may begin: in a folder that holds nothing of anybody's."""

from __future__ import annotations

import pytest

from tests.conftest import QUIET, MakeRun
from trc2.errors import UserError
from trc2.runs.lock import lock_folder
from trc2.training.setup import start_run


@pytest.mark.parametrize("name", ["config.yaml", "notes.txt", "summary.md"])
def test_a_folder_with_files_of_others_is_refused_and_they_stay(tiny_run: MakeRun, name: str) -> None:
    folder = tiny_run().output.folder
    folder.mkdir()
    (folder / name).write_text("mine")
    with pytest.raises(UserError, match=f"such as {name}: choose another output.folder"):
        start_run(tiny_run(), QUIET)
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"


def test_the_description_of_a_run_that_was_killed_before_its_first_record_is_replaced(tiny_run: MakeRun) -> None:
    folder = tiny_run().output.folder
    with lock_folder(folder):
        (folder / "config.yaml").write_text("half")
        (folder / "failure.json").write_text("{}")
    assert start_run(tiny_run(), QUIET) == folder
    assert (folder / "metrics.jsonl").is_file()
