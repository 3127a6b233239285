"""The command as users type it: what it prints, what it writes, how it exits."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from tests.command import trc2 as in_process
from tests.conftest import tiny_config, write_task
from trc2 import CortexNet, __version__, cli
from trc2.backbones.saved import save_model
from trc2.cli import COMMANDS, app
from trc2.config import RunConfig, recipe_names
from trc2.metrics.paired import Interval

PLAIN = tiny_config(thalamus=False, memory=False, replay=False, num_columns=1)
TINY = [f"model.{key}={value}" for key, value in PLAIN.model_dump(exclude_none=True).items() if key != "name"]
TINY += ["train.sequence_length=16"]


def trc2(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trc2.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize("module", ["trc2", "trc2.cli"])
def test_the_package_is_the_command(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"trc2 {__version__}"


def test_every_command_has_one_file_and_help_keeps_their_order() -> None:
    group = typer.main.get_group(app)
    assert tuple(group.commands) == COMMANDS
    folder = Path(cli.__file__).parent
    files = {path.stem.rstrip("_").replace("_", "-") for path in folder.glob("*.py")}
    assert files - {"--init", "--main", "app"} == set(COMMANDS)


def test_verify_prints_a_table_writes_json_and_a_picture_and_takes_a_saved_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(CortexNet(tiny_config()), tmp_path / "model")
    done = in_process("verify", "model", "--out", "out")
    assert done.code == 0, done.err
    assert "All" in done.out
    assert "forward, eval (filled)" in done.out
    report = json.loads((tmp_path / "out" / "verify.json").read_text())
    assert report["passed"] is True
    assert all(check["passed"] is True for check in report["checks"])
    assert (tmp_path / "out" / "verify.png").read_bytes().startswith(b"\x89PNG")
    assert "parameters." in in_process("budget", "model").out
    changed = in_process("verify", "model", "model.d_model=3")
    assert changed.code == 2
    assert "leave the overrides out" in changed.err


def test_budget_prints_both_counts_and_json() -> None:
    assert "8,520,244 parameters." in in_process("budget").out
    ablated = in_process(
        "budget", "paper_compact", "model.thalamus=false", "model.memory=false", "model.replay=false"
    ).out
    assert "of the complete model's 8,520,244" in " ".join(ablated.split())
    numbers = json.loads(in_process("budget", "paper_compact", "--json").out)
    assert numbers["parameters"] == 8_520_244
    assert set(numbers["flops_per_token"]) == {"embedding and head", "columns", "thalamus", "hippocampus", "replay"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["budget", "paper_compct"], "There is no recipe or file 'paper_compct': did you mean 'paper_compact'?"),
        (["budget", "paper_compact", "model.d_modell=3"], "Unknown setting 'model.d_modell': did you mean 'd_model'?"),
        (["verify", "paper_compact", "model.d_model=10"], "model: d_model=10 is not divisible by num_heads=8"),
        (["verify", "."], "There is no config.json"),
        (["train", "[/red]"], "There is no recipe or file '[/red]'"),
        (["train", "demo", "output.report_to=[trackio]x"], "output.report_to"),
        (["train", "demo", "stream.tasks={1: 2}"], "quote it"),
        (["resume", "."], "is not a run folder"),
        (["continue", ".", "--task", "a", "--builtin", "code"], "holds neither a run"),
        (
            ["continue", "x", "--task", "a", "--builtin", "code", "--max-forgetting", "inf"],
            "--max-forgetting inf is no",
        ),
        (["generate", ".", "--temperature", "nan"], "config.json"),
        (["report", "/dev/null"], "is not a run folder"),
        (["export", "nowhere", "x" * 300], "File name too long"),
        (["verify", "paper_compact", "--out", "/dev/null/x"], "Not a directory"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = in_process(*arguments, *(TINY if "--out" in arguments else []))
    assert done.code == 2, done
    assert done.err.startswith("error: ")
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_the_exit_code_and_the_sentence_leave_the_process(tmp_path: Path) -> None:
    done = trc2("budget", "paper_compct", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: There is no recipe or file 'paper_compct': did you mean 'paper_compact'?\n"
    assert done.stdout == ""


LATER = ("matplotlib", "transformers", "tokenizers", "datasets", "torch", "numpy", "pydantic", "yaml", "trc2.config")


@pytest.mark.parametrize(("module", "later"), [("trc2", ("typer", "rich")), ("trc2.cli", ("trc2.training",))])
def test_importing_is_quick_and_pulls_in_nothing_heavy(module: str, later: tuple[str, ...]) -> None:
    heavy = (*LATER, *later)
    code = f"import json, sys, {module}; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_help_shows_brackets_instead_of_reading_them_as_markup() -> None:
    bracketed = re.compile(r"[\w.]+\\?\[[a-z-]+\]")  # such as .[hf]
    seen = 0
    for name, command in typer.main.get_group(app).commands.items():
        given = [command.help, *[getattr(parameter, "help", None) for parameter in command.params]]
        wanted = {word.replace("\\", "") for text in given for word in bracketed.findall(text or "")}
        seen += len(wanted)
        assert not wanted or wanted <= set(bracketed.findall(in_process(name, "--help").out))
    assert seen
    assert ".[lm-eval]" in in_process("--help").out


def test_doctor_breaks_no_word_on_a_terminal_of_80_columns() -> None:
    found = json.loads(in_process("doctor", "--quick", "--json").out)["findings"]
    assert "extra lm-eval" in {finding["name"] for finding in found}
    shown = in_process("doctor", "--quick").out
    assert max(map(len, shown.splitlines())) <= 80
    words = set(shown.split())
    short = {word for finding in found for word in finding["advice"].split() if len(word) < 58}
    assert short - words == set()


def test_help_imports_no_torch_and_is_there_at_once() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "trc2", "--help"]
    before = os.times().children_user
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took = os.times().children_user - before  # of the processor: what other programs do is not our fault
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "trc2.cli" in modules
    assert not {name.partition(".")[0] for name in modules} & {"torch", "numpy", "pydantic", "transformers"}
    assert "Exit codes: 0 done, 1 a check failed or a process was lost, 2 bad input" in " ".join(done.stdout.split())
    assert took < 1.5  # half a second and what counting imports adds, on a slow machine


def test_the_shell_completes_commands_and_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    for line, expected in (("trc2 conf", "config"), ("trc2 train lab_single_w", "lab_single_wikitext")):
        asked = {"_TRC2_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys.argv[0] = 'trc2'; from trc2.cli import main; main()"],
            env={**os.environ, **asked}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.split() == [expected], done.stderr
    # The shell is found by the parent process, so there must be one: `; true` keeps bash from replacing itself.
    command = ["bash", "-c", f"'{sys.executable}' -m trc2 --show-completion; true"]
    assert "complete" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_public_names_are_there_when_they_are_asked_for() -> None:
    import trc2 as package

    assert set(package.__all__) <= set(dir(package))
    assert package.CortexNet.__module__ == "trc2.backbones.trc2"
    assert {name: getattr(package, name) for name in package.__all__}.keys() == set(package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Cortexnet'"):
        _ = package.Cortexnet  # type: ignore[attr-defined]


def test_recipes_are_listed_with_what_they_are_for() -> None:
    listed = in_process("recipes", "--json")
    found = json.loads(listed.out)
    assert set(found) == set(recipe_names())
    assert found["demo"] == "A laptop-sized TRC² through three built-in tasks."
    assert all(purpose and "\n" not in purpose for purpose in found.values())
    assert set(json.loads(in_process("recipes", "lab_single", "--json").out)) == {
        "lab_single_c4", "lab_single_gsm8k", "lab_single_wikitext",
    }  # fmt: skip
    assert "lab_mamba" in in_process("recipes", "mamba").out
    refused = in_process("recipes", "nothing")
    assert (refused.code, refused.out) == (2, "")


def test_config_shows_value_default_meaning_and_origin() -> None:
    done = in_process("config", "lab_plain", "train.seed=3", "stream.tasks.gsm8k.steps=7")
    assert done.code == 0
    lines = {line.split(" = ")[0].strip(): line for line in done.out.splitlines()}
    assert "= 3 " in lines["train.seed"]
    assert "[override train.seed; default 0] seed of weights, batches" in lines["train.seed"]
    assert "[base lab_trc2; default 768]" in lines["model.d_model"]
    assert "[override stream.tasks.gsm8k.steps; default 100]" in lines["stream.tasks.gsm8k.steps"]
    assert "[default]" in lines["train.clip_norm"]
    assert "train.clip_norm" not in in_process("config", "lab_plain", "--changed").out
    settings = {entry["path"]: entry for entry in json.loads(in_process("config", "lab_plain", "--json").out)}
    assert settings["model.memory"] == {
        "path": "model.memory", "value": False, "default": True, "origin": "lab_plain",
        "meaning": "whether there is an episodic memory, with critic and feedback",
    }  # fmt: skip
    assert in_process("config", "demo", "model.d_modell=3").code == 2


def tiny_recipe(tiny_run: Callable[..., RunConfig], folder: Path) -> str:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_run().model_dump(mode="json")))
    return str(path)


def test_train_eval_report_and_data_work_together(
    tiny_run: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe(tiny_run, tmp_path)
    prepared = in_process("data", "prepare", recipe)
    assert prepared.code == 0, prepared.err
    assert "fruit" in prepared.out

    done = in_process("train", recipe, "output.folder=a")
    assert done.code == 0, done.err
    assert "step 12  perplexity" in done.out
    assert "summary.png" in done.out
    shutil.copytree("a", "b")
    again = in_process("train", recipe, "output.folder=a")
    assert again.code == 2
    assert "already holds a run" in again.err

    scores = json.loads(in_process("eval", "a", "--task", "fruit", "--json").out)
    last = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    logged = [record["metrics"] for record in last if record["kind"] == "eval"][-1]
    assert scores["fruit"]["perplexity"] == pytest.approx(logged["eval/fruit/perplexity"])

    (tmp_path / "new.jsonl").write_text('{"text": "apple pear plum fig apple pear plum fig"}\n')
    other = json.loads(in_process("eval", "a", "--file", "new.jsonl", "--json").out)
    assert other["new.jsonl"]["perplexity"] > 1

    compared = in_process("report", "a", "b", "--out", "out")
    assert compared.code == 0, compared.err
    assert "What each run forgot" in compared.out
    assert (tmp_path / "out" / "figures" / "curves.png").is_file()

    for arguments, sentence in (
        (["eval", "a", "--split", "test"], "use --again"),
        (["eval", "a", "--split", "tests"], "There is no split 'tests'"),
        (["eval", "a", "--task", "fruits"], "did you mean 'fruit'?"),
        (["eval", "a", "--file", "nothing.jsonl"], "There is no file nothing.jsonl"),
        (["eval", "nowhere"], "There is no recipe or file 'nowhere'"),
        (["report", "nowhere"], "is not a run folder"),
        (["train", "paper_compact"], "has no stream of tasks"),
        (["data", "prepare", "paper_compact"], "has no stream of tasks"),
    ):
        wrong = in_process(*arguments)
        assert wrong.code == 2, arguments
        assert sentence in wrong.err, arguments
    assert in_process("eval", "a", "--split", "test", "--again").code == 0


def test_every_command_that_prints_numbers_prints_them_as_json_too(
    tiny_run: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe(tiny_run, tmp_path)

    def numbers(*arguments: str) -> Any:
        done = in_process(*arguments, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    data = numbers("data", "prepare", recipe)
    assert data["tasks"]["fruit"]["splits"]["train"]["documents"] == 60
    trained = numbers("train", recipe, "output.folder=a")
    assert trained["finished"]
    assert trained["perplexity"]["fruit"]["learned"] > 1
    assert trained["perplexity"]["fruit"]["test"]["perplexity"] > 1
    assert trained["forgetting"]["perplexity"]["cl/perplexity/aufc"] >= 0
    assert numbers("resume", "a") == numbers("report", "a") == trained
    assert "Test perplexity, read once at the end: fruit" in Path("a/summary.md").read_text()
    shutil.copytree("a", "b")
    both = numbers("report", "a", "b", "--out", "out")
    assert [run["perplexity"] for run in both["runs"]] == [trained["perplexity"]] * 2
    assert both["variants"] == 2  # a copy is not counted as a second seed
    assert both["findings"]
    assert numbers("eval", "a", "--task", "fruit")["fruit"]["tokens"] > 1
    assert numbers("verify", "paper_compact", *TINY)["passed"] is True
    assert numbers("budget", "--paper")["different"] == 0
    Path("matrix.yaml").write_text(f"grids: [{{recipes: [{recipe}], seeds: [0, 1]}}]")
    listed = numbers("sweep", "matrix.yaml", "--list")
    assert [run["state"] for run in listed.values()] == ["waiting", "waiting"]


def test_no_command_with_numbers_lacks_json() -> None:
    group = typer.main.get_group(app)
    without = {
        name for name, command in group.commands.items()
        if not any("--json" in option.opts for option in command.params)
    }  # fmt: skip
    assert without <= {"generate", "serve", "export", "data"}  # text, files. `data` is a group


def test_continue_is_gated_by_what_it_forgot(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path, "colours", ["red", "blue"])
    arguments = ["continue", str(trained), "--task", "colours", "--folder", str(tmp_path / "colours"), "--steps", "2"]
    for number, (risen, expected) in enumerate([(0.5, 3), (0.1, 0)]):
        monkeypatch.setattr(
            "trc2.continuing.acceptance.paired_rise", lambda *_, value=risen: Interval(value, value, value)
        )
        out = ["--out", str(tmp_path / f"child {number}"), "--max-forgetting", "0.2"]
        done = CliRunner().invoke(app, [*arguments, *out])
        assert done.exit_code == expected, done.output
        assert f"Against the parent, 8 documents of fruit/test: +{risen:.1%}" in done.output
        assert (tmp_path / f"child {number}" / "summary.png").is_file()


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trc2.verify.run_checks", lambda *_, **__: pytest.fail("the checks ran"))
    monkeypatch.setattr("trc2.verify.kill_tests.verify_resume", lambda *_, **__: pytest.fail("a run was killed"))
    monkeypatch.setattr("trc2.costs.comparison.bench_recipe", lambda *_, **__: pytest.fail("it was timed"))
    (tmp_path / "file").touch()
    for command in (["verify", "paper_compact"], ["verify", "--resume"], ["bench", "demo"]):
        done = in_process(*command, "--out", str(tmp_path / "file" / "x"), *(TINY if command[0] == "verify" else []))
        assert done.code == 2, done
        assert "Not a directory" in done.err
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)  # root may write everywhere
    done = in_process("verify", "paper_compact", *TINY, "--out", str(tmp_path))
    assert done.code == 2
    assert "Permission denied" in done.err


def test_no_escape_sequence_of_ours_or_theirs_reaches_the_terminal() -> None:
    for arguments in (["train", "\x1b[31mred\x07"], ["eval", "\x1b]0;title\x07"], ["budget", "demo", "\x1b[2J=1"]):
        done = in_process(*arguments)
        assert done.code == 2
        assert not any(sign in done.err + done.out for sign in "\x1b\x07")


def test_what_is_no_name_for_a_child_is_refused(trained: Path) -> None:
    for place in ("", ".", "/"):
        task = ["--task", "sums", "--builtin", "arithmetic", "--steps=1"]
        done = in_process("continue", str(trained), *task, "--out", place)
        assert (done.code, done.out) == (2, "")
        assert "is not a name for a new folder" in " ".join(done.err.split())


def test_the_summary_of_one_run_goes_where_it_is_asked_to(trained: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in trained.iterdir())
    assert in_process("report", str(trained), "--out", str(tmp_path / "there")).code == 0
    assert {"summary.md", "summary.png"} <= {path.name for path in (tmp_path / "there").iterdir()}
    assert sorted(path.name for path in trained.iterdir()) == before


@pytest.mark.parametrize("arguments", [("doctor", "--quick", "\u202eevil"), ("\u202eevil",), ("doctor", "--\x1b[2J")])
def test_a_usage_error_shows_nothing_that_moves_or_reorders(arguments: tuple[str, ...]) -> None:
    done = in_process(*arguments)
    assert done.code == 2
    assert "\u202e" not in done.out + done.err
    assert "\x1b[2J" not in done.out + done.err
