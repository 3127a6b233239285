from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import trc2
from trc2.backbones.registry import replayed_chunks
from trc2.config import RunConfig, load_recipe
from trc2.errors import UserError
from trc2.runs.equal_cost import budget_of
from trc2.setup import recipe_sizing as fitting
from trc2.setup.recipe_sizing import MAX_PASSES, Proposal, look_at, propose, recipe_text
from trc2.setup.speed_probe import Speed, measure_speed, waiting_share
from trc2.stream.packed import PreparedStream
from trc2.stream.prepare import prepare_stream


def write(folder: Path, kilobytes: int, seed: int = 0) -> Path:
    """Invented text in files of a few kilobytes."""
    rng = random.Random(seed)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 7))) for _ in range(300)]
    folder.mkdir(parents=True)
    for number in range(kilobytes // 4):
        text = " ".join(rng.choice(words) for _ in range(800))
        (folder / f"{number}.txt").write_text(text[:4096])
    return folder


def machine(flops: float, waiting: float):  # type: ignore[no-untyped-def]
    """A probe of an invented machine with so many FLOP/s, whatever the model. Others take a share of its time."""

    def probe(config: RunConfig, seconds: float) -> Speed:
        step = budget_of(config).training_flops_per_step / flops / (1 - waiting)
        return Speed(step, step / 3, waiting)

    return probe


def proposed(
    folders: list[Path], seconds: float, flops: float, cache: Path, monkeypatch: pytest.MonkeyPatch, waiting: float = 0
) -> Proposal:
    monkeypatch.setattr(fitting, "peak_matmul_flops", lambda device: flops / fitting.UTILISATION)
    monkeypatch.setattr(fitting, "_start_up_seconds", lambda: 5.0)

    def prepare(config: RunConfig) -> PreparedStream:
        assert config.stream is not None
        return prepare_stream(config.stream.replace(cache=cache))

    return propose(look_at(folders), seconds, Path("runs/my"), prepare, machine(flops, waiting))


def test_the_time_asked_for_is_filled_and_more_of_it_gives_a_larger_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [write(tmp_path / name, 400, seed) for seed, name in enumerate(("news", "code"))]
    widths = []
    for seconds, flops in ((30, 2e9), (60, 5e9), (120, 4e10)):
        found = proposed(folders, seconds, flops, tmp_path / "cache", monkeypatch)
        assert found.seconds == pytest.approx(seconds, rel=0.1)
        widths.append((found.config.model.d_model, found.config.model.depth))
    assert sorted(widths) == widths
    assert widths[0] < widths[-1]


def test_little_text_is_not_learned_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = proposed([write(tmp_path / "little", 24)], 3600, 1e10, tmp_path / "cache", monkeypatch)
    train = found.config.train
    assert found.steps * train.tokens_per_step < 1.1 * MAX_PASSES * 24 * 1024
    assert found.seconds < 1800


def test_of_much_text_no_more_is_read_than_the_steps_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    much = write(tmp_path / "much", 8)
    with (much / "large.txt").open("w") as file:
        for number in range(60_000):
            file.write(f"Line {number} of a large file.\n\n")
    found = proposed([much], 30, 2e9, tmp_path / "cache", monkeypatch)
    assert found.config.stream is not None
    assert found.config.stream.tasks[0].max_train_bytes is not None


def test_the_recipe_says_what_was_proposed_with_a_comment_for_every_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [write(tmp_path / "Some News", 100), write(tmp_path / "deep" / "some-news", 100, 1)]
    found = proposed(folders, 30, 2e9, tmp_path / "cache", monkeypatch)
    text = recipe_text(found, look_at(folders), "trc2 init …")
    (tmp_path / "my.yaml").write_text(text)
    assert load_recipe(str(tmp_path / "my.yaml")) == found.config
    assert found.config.stream is not None
    assert [task.name for task in found.config.stream.tasks] == ["some-news", "some-news2"]
    assert found.config.control.mode == "fixed"
    new = found.config.train.tokens_per_step
    replayed = replayed_chunks(found.config.model, new) * (found.config.model.replay_chunk_length - 1)
    assert replayed / (replayed + new) == pytest.approx(0.4444)  # docs/which-recipe.md
    paper = found.config.eval.batch_size * found.config.train.sequence_length  # new tokens of a step without a share
    assert (replayed + new) / paper == pytest.approx(18 / 16, rel=0.02)
    lines = text.splitlines()
    for section in ("model:", "stream:", "train:", "control:", "eval:", "output:"):
        assert lines[lines.index(section) - 1].startswith("# ")


def test_a_busy_machine_is_named_with_the_time_the_recipe_takes_without_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [write(tmp_path / "news", 100)]
    busy = proposed(folders, 35, 2e9, tmp_path / "cache", monkeypatch, waiting=0.5)
    assert busy.seconds == pytest.approx(35, rel=0.1)  # what was measured holds while the load does
    caution = busy.caution()
    assert caution is not None
    assert "busy: for 50% of the measurement this process got no core" in caution
    assert "this recipe takes about 0.3 minutes" in caution  # half of 35 s
    text = recipe_text(busy, look_at(folders), "trc2 init …")
    comment = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
    assert caution in comment
    calm = proposed(folders, 35, 2e9, tmp_path / "cache", monkeypatch, waiting=0.1)
    assert calm.caution() is None
    assert "is busy" not in recipe_text(calm, look_at(folders), "trc2 init …")


def test_waiting_is_the_share_of_the_time_without_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    begun, worked = time.perf_counter(), time.thread_time()
    time.sleep(0.2)
    assert waiting_share(begun, worked) > 0.9
    assert waiting_share(begun, worked - 100.0) == 0.0


@pytest.mark.parametrize("kilobytes", [1, 2, 5])
def test_a_single_short_file_gets_a_recipe_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kilobytes: int
) -> None:
    (tmp_path / "note.md").write_text("A few words about something. " * (kilobytes * 35))
    found = proposed([tmp_path / "note.md"], 20, 2e9, tmp_path / "cache", monkeypatch)  # Feed has not refused it
    assert found.steps >= 1


def test_what_has_no_text_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("short.txt").write_text("too short")
    Path("long.txt").write_text("long enough " * 20)
    Path("taken.yaml").touch()
    Path("link.yaml").symlink_to("elsewhere.yaml")
    for arguments, sentence in (
        (["nowhere"], "There is no folder or file nowhere"),
        (["empty"], "has no train files"),
        (["short.txt"], "too few to learn from"),
        (["short.txt", "--minutes", "nan"], "--minutes"),
        (["long.txt", "--out", "taken.yaml"], "exists already"),
        (["long.txt", "--out", "link.yaml"], "exists already"),
        (["long.txt", "--out", "taken.yaml/my.yaml"], "taken.yaml"),
    ):
        done = trc2("init", *arguments)
        assert done.code == 2, done.out
        assert sentence in done.err
    with pytest.raises(UserError, match="There is no folder"):
        look_at([tmp_path / "nowhere"])
    (tmp_path / "equal=sign.txt").write_text("long enough " * 20)
    named = look_at([f"news={tmp_path / 'long.txt'}", str(tmp_path / "equal=sign.txt")])
    assert [(corpus.name, corpus.path.name) for corpus in named] == [
        ("news", "long.txt"), ("equal-sign", "equal=sign.txt"),
    ]  # fmt: skip
    (tmp_path / "equal=sign.txt").unlink()
    with pytest.raises(UserError, match="Two folders are called news"):
        look_at([f"news={tmp_path / 'long.txt'}"] * 2)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["empty", "link.yaml", "long.txt", "short.txt", "taken.yaml"]
    assert Path("link.yaml").is_symlink()


def test_a_probe_takes_about_the_time_it_is_given() -> None:
    begun = time.monotonic()
    # A busy machine cannot hide 48 times the work.
    small = ["model.num_columns=2", "train.batch_size=16", "eval.batch_size=1"]
    speed = measure_speed(load_recipe("demo", small), 1.0)
    assert time.monotonic() - begun < 30
    assert 0 < speed.scoring < speed.step
    assert 0 <= speed.waiting <= 1


@pytest.mark.slow
def test_a_run_takes_about_as_long_as_init_says(tmp_path: Path) -> None:
    folders = [str(write(tmp_path / name, 400, seed)) for seed, name in enumerate(("news", "code"))]
    factors = []
    for attempt in range(3):  # others may come and go on the machine while this is measured
        recipe = tmp_path / f"my{attempt}.yaml"
        command = [sys.executable, "-m", "trc2"]
        made = subprocess.run(
            [*command, "init", *folders, "--minutes", "0.75", "--out", str(recipe), "--json"],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        said = json.loads(made.stdout)["seconds"]
        assert said == pytest.approx(45, rel=0.2)
        begun = time.monotonic()
        subprocess.run([*command, "train", str(recipe)], cwd=tmp_path, capture_output=True, check=True)
        factors.append((time.monotonic() - begun) / said)
        if 1 / 1.5 < factors[-1] < 1.5:
            return
    pytest.fail(f"took {factors} times as long as said")
