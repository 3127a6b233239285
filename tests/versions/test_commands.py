"""The weekly commands, as users type them."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.command import trc2
from tests.conftest import write_task
from tests.versions.conftest import flip, refuse
from trc2.verify.kill_runner import run_in_child
from trc2.versions.find import copy_model
from trc2.versions.registry import Versions

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
OVERRIDES = ["eval.text_sequences=0"]


def weekly(versions: Versions, week: Path, *more: str) -> list[str]:
    return ["continue", str(versions.folder), "--task", f"news={week}", "--steps", "2", *OVERRIDES, *more]


@pytest.fixture
def week(tmp_path: Path) -> Path:
    write_task(tmp_path, "news", ["red", "blue", "green", "grey"], documents=20)
    return tmp_path / "news"


def test_one_command_teaches_checks_promotes_and_can_be_given_again(
    versions: Versions, week: Path, tmp_path: Path
) -> None:
    script = tmp_path / "tell.py"
    script.write_text(
        "import json, os, sys\n"
        "said = json.load(sys.stdin)\n"
        "line = {'env': {k: v for k, v in os.environ.items() if k.startswith('TRC2_')}, 'said': said}\n"
        f"open({str(tmp_path / 'told')!r}, 'a').write(json.dumps(line) + '\\n')\n"
    )
    command = weekly(versions, week, "--max-forgetting", "1000", "--promote", "--json")
    done = trc2(*command, "--notify", f"{sys.executable} '{script}'")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    second = versions.accepted()
    assert told["accepted"]["name"] == second.name
    assert told["verdict"]["passed"]
    assert (second.number, second.tasks) == (2, ("news",))
    verdict, promotion = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert verdict["env"]["TRC2_VERDICT"] == "accepted"
    assert verdict["said"]["tasks"].keys() == {"fruit", "tools"}
    assert promotion["env"]["TRC2_VERSION"] == second.name
    assert promotion["env"]["TRC2_MODEL"] == str(second.model)
    again = trc2(*command)  # cron comes twice
    assert (again.code, json.loads(again.out)["taught_by"]) == (0, second.name)
    assert versions.accepted().name == second.name

    refused = trc2(*weekly(versions, week, "--max-forgetting", "0", "--promote", "train.learning_rate=2"))
    assert refused.code == 0  # the same text is not taught twice, whatever the settings
    write_task(tmp_path, "news", ["iron", "tin", "zinc", "lead"], documents=20)
    harmful = weekly(versions, week, "--max-forgetting", "0", "--promote", "train.learning_rate=2")
    for name in ("0003-news", "0003-news-2"):  # a refused attempt does not block the next
        refused = trc2(*harmful)
        assert refused.code == 3, refused.err
        assert (versions.folder / "attempts" / name / "acceptance.json").is_file()
    for number in (3, 4):
        shutil.copytree(versions.folder / "attempts" / name, versions.folder / "attempts" / f"0003-news-{number}")
    assert trc2(*harmful).code == 3  # the refused weeks before it are pruned, and the newest three are not
    kept = [path.parent.name for path in sorted(versions.folder.glob("attempts/*/checkpoints"))]
    assert kept == ["0003-news-3", "0003-news-4", "0003-news-5"]
    assert versions.accepted().name == second.name


def test_killed_anywhere_the_same_command_ends_with_the_same_version(
    versions: Versions, week: Path, tmp_path: Path
) -> None:
    command = ["--max-forgetting", "1000", "--promote", "--json"]
    start = shutil.copytree(versions.folder, tmp_path / "start")
    assert trc2(*weekly(versions, week, *command)).code == 0
    undisturbed = versions.accepted()
    disturbed = Versions(shutil.copytree(start, tmp_path / "disturbed"))

    def attempt(_: Path) -> None:
        done = trc2(*weekly(disturbed, week, *command))
        assert done.code == 0, done.err

    for point in ("step:2", "verdict:1", "version rename:1", "version event:1"):
        assert run_in_child(attempt, disturbed.folder, point) < 0, point
    attempt(disturbed.folder)
    assert disturbed.accepted().name == undisturbed.name
    tensors = [name for name in undisturbed.files if name.endswith("tensors.safetensors")]
    assert [undisturbed.files[name] for name in tensors] == [disturbed.accepted().files[name] for name in tensors]
    assert [event.kind for event in disturbed.events()] == ["promote", "promote"]


def test_a_versions_folder_stands_for_its_accepted_version(versions: Versions, attempt: Path, tmp_path: Path) -> None:
    home = str(versions.folder)
    assert trc2("promote", home, str(attempt), "--reason", "week 2").code == 0
    accepted = versions.accepted()
    before = {path: path.stat().st_mtime_ns for path in accepted.folder.rglob("*")}
    done = trc2("eval", home, "--json")
    assert done.code == 0, done.err
    assert set(json.loads(done.out)) == {"colours", "fruit", "tools"}
    assert trc2("eval", home, "--task", "colour").code == 2
    assert trc2("generate", home, "--max-new-tokens", "2").code == 0
    assert trc2("export", home, str(tmp_path / "model")).code == 0
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (
        accepted.model / "model.safetensors"
    ).read_bytes()
    assert trc2("report", home).code == 0
    assert (versions.folder / "reports" / accepted.name / "summary.md").is_file()
    assert {path: path.stat().st_mtime_ns for path in accepted.folder.rglob("*")} == before  # nothing was written
    back = trc2("rollback", home, "--reason", "bad answers", "--json")
    assert json.loads(back.out)["accepted"]["number"] == 1
    assert trc2("rollback", home).code == 2
    assert trc2("rollback", home, "--to", "2").code == 0


def test_a_version_is_exported_whole_into_a_new_folder_or_the_current_one(
    versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, model = str(versions.folder), versions.accepted().model
    expected = sorted(path.name for path in model.iterdir())
    assert run_in_child(lambda _: copy_model(versions.folder, tmp_path / "new"), tmp_path, "export rename:1") < 0
    assert not (tmp_path / "new").exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for target in (tmp_path / "new", Path()):
        done = trc2("export", home, str(target))
        assert done.code == 0, done.err
        assert sorted(path.name for path in target.iterdir()) == expected
        assert trc2("export", home, str(target)).code == 2  # not empty
    assert not list(tmp_path.glob(".new*"))
    assert (tmp_path / "here").samefile(Path.cwd())


def test_runs_and_versions_are_listed_with_their_parents(versions: Versions, attempt: Path, tmp_path: Path) -> None:
    refuse(attempt)
    versions.promote(attempt)
    picture = tmp_path / "tree.png"
    done = trc2("runs", str(versions.folder), "--json", "--picture", str(picture))
    assert done.code == 0, done.err
    first, second, refused = json.loads(done.out)["runs"]
    assert (first["state"], first["parent"]) == ("version", None)
    assert (second["state"], second["parent"], second["kind"]) == ("accepted", first["name"], "version")
    assert (refused["name"], refused["state"]) == ("attempts/0002-colours-refused", "refused")
    assert refused["parent"] == first["name"]
    assert set(second["scores"]) == {"fruit", "tools", "colours"}
    assert second["bytes"] > 1000
    with Image.open(picture) as image:
        assert image.size[0] > 500
    shown = trc2("runs", str(versions.folder))
    assert all(row["name"] in shown.out for row in (first, second))  # whole, to be copied
    assert "0002-colours-refused" in shown.out
    assert "worst rise" in shown.out
    alone = trc2("runs", str(versions.get("1").run))  # without a parent there is nothing to compare with
    assert ("goes on from" in alone.out, "worst rise" in alone.out, "perplexity" in alone.out) == (False, False, True)
    assert trc2("runs", str(tmp_path / "nowhere")).code == 2
    (tmp_path / "empty").mkdir()
    assert "holds neither runs nor versions" in trc2("runs", str(tmp_path / "empty")).out.replace("\n", " ")


def test_a_damaged_version_is_listed_as_damaged_and_the_week_goes_on(versions: Versions, attempt: Path) -> None:
    home, first = str(versions.folder), versions.accepted()
    versions.promote(attempt)
    flip(first.folder / "version.json")
    rows = {row["name"]: row for row in json.loads(trc2("runs", home, "--json").out)["runs"]}
    assert [row["state"] for row in rows.values()] == ["damaged", "accepted"]
    assert f"{first.name} is damaged: " in trc2("runs", home).out.replace("\n", " ")
    listed = json.loads(trc2("versions", home, "--json").out)["data"]
    assert [(row["is_damaged"], row["is_latest"]) for row in listed] == [(False, True), (True, False)]
    assert "damaged" in trc2("versions", home).out
    back = trc2("rollback", home)
    assert (back.code, "its checksum differs" in back.err) == (2, True)


def test_text_that_a_waiting_version_learned_is_not_taught_again_and_the_command_says_that_it_waits(
    versions: Versions, week: Path
) -> None:
    command = weekly(versions, week, "--max-forgetting", "1000", "--promote")
    done = trc2(*command, "--hold", "--json")
    assert done.code == 0, done.err
    (held,) = versions.waiting()
    assert json.loads(done.out)["held"]["name"] == held.name
    for more in ((), ("--hold",)):
        again = trc2(*command, *more)
        assert again.code == 0, again.err
        said = " ".join(again.out.split())
        assert f"{held.name} was taught this text already." in said
        assert f"{held.name} waits: `trc2 versions {versions.folder} --promote 2` accepts it." in said
    told = json.loads(trc2(*command, "--json").out)
    assert (told["taught_by"], told["is_held"]) == (held.name, True)
    assert len(versions.all()) == 2


def test_models_are_pruned_only_with_a_promotion_and_if_that_fails_the_promotion_stands(
    versions: Versions, week: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = trc2(*weekly(versions, week, "--max-forgetting", "1000", "--keep-models", "2"))
    assert alone.code == 2
    assert "--keep-models is about a version that --promote adds" in alone.err
    assert versions.attempts()[0].name == "0002-colours"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Versions, "prune", full)
    done = trc2(*weekly(versions, week, "--max-forgetting", "1000", "--promote", "--json"))
    assert done.code == 0, done.err
    assert "Nothing was pruned: " in done.err
    assert json.loads(done.out)["accepted"]["name"] == versions.accepted().name
    write_task(week.parent, week.name, ["iron", "tin", "zinc", "lead"], documents=20)
    refused = trc2(*weekly(versions, week, "--max-forgetting", "0", "--promote", "train.learning_rate=2"))
    assert (refused.code, "Nothing was pruned: " in refused.err) == (3, True)


def test_a_difference_says_what_was_gained_and_lost(versions: Versions, attempt: Path) -> None:
    versions.promote(attempt)
    first, second = versions.all()
    done = trc2("diff", str(first.folder), str(versions.folder), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["first"], found["second"]) == (first.name, second.name)
    texts = {(text["task"], text["learned_by"]): text for text in found["texts"]}
    assert set(texts) == {("fruit", "both"), ("tools", "both"), ("colours", "second")}
    assert second.verdict is not None
    for task in ("fruit", "tools"):  # the same documents as in the acceptance check
        assert texts[task, "both"]["rise"] == pytest.approx(second.verdict["tasks"][task]["rise"], rel=1e-3, abs=1e-5)
    sentence = trc2("diff", str(second.folder), str(first.folder)).out
    assert f"colours (held out by {second.name} only)" in " ".join(sentence.split())


def test_a_command_that_cannot_be_split_is_refused_and_one_that_fails_is_a_warning(
    versions: Versions, attempt: Path
) -> None:
    unclosed = trc2("promote", str(versions.folder), str(attempt), "--notify", "mail 'me")
    assert (unclosed.code, len(versions.all())) == (2, 1)
    failing = trc2("promote", str(versions.folder), str(attempt), "--notify", "no-such-program; touch here")
    assert failing.code == 0
    assert "could not run" in failing.err
    assert not Path("here").exists()


def test_a_tree_is_not_drawn_over_a_file_that_is_not_a_picture(tmp_path: Path) -> None:
    notes = tmp_path / "summary.md"
    notes.write_text("mine")
    done = trc2("runs", str(tmp_path), "--picture", str(notes))
    assert (done.code, notes.read_text()) == (2, "mine")
    assert "does not end in .png" in done.err


def test_the_whole_disk_is_not_searched_for_runs(tmp_path: Path) -> None:
    for command in ("runs", "report"):
        done = trc2(command, tmp_path.anchor)
        assert done.code == 2
        assert "root of the file system" in done.err
