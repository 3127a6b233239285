"""Every command that a page shows is one that the command line takes, with settings that exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from trc2.cli import app
from trc2.config import MODELS, load_recipe, recipe_names
from trc2.config.run import RunConfig

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]
SHELL = re.compile(r"```(?:bash|console)\n(.*?)```", re.DOTALL)
MATRICES = {path.stem for path in (ROOT / "src" / "trc2" / "matrices").glob("*.yaml")}


def commands(page: Path) -> list[str]:
    """What a reader would type on a page, one after the other."""
    return [command for block in SHELL.findall(page.read_text(encoding="utf-8")) for command in typed(block)]


def typed(block: str) -> list[str]:
    """The lines of a shell block, of one with prompts those behind a dollar; no remarks."""
    lines = block.replace("\\\n", " ").splitlines()
    has_prompts = any(line.startswith("$ ") for line in lines)
    kept = [line.removeprefix("$ ") for line in lines if not has_prompts or line.startswith("$ ")]
    return [command for line in kept if (command := re.sub(r"\s+#.*", "", line).strip())]


SHOWN = [(page, command) for page in PAGES for command in commands(page)]


def parse(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The command's name and its arguments, as the command line reads them; nothing runs."""
    command: Any = typer.main.get_group(app)
    path = []
    while hasattr(command, "commands"):
        path.append(arguments[0])
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return " ".join(path), command.make_context(" ".join(path), list(arguments)).params


def check_settings(recipe: str, overrides: list[str], nproc: int) -> None:
    """A recipe of ours is built with the overrides; the reader's own may be any, so `demo` stands for it."""
    assert recipe in recipe_names() or recipe.endswith(".yaml"), f"no recipe {recipe}"
    if "model=hf" in overrides:  # its folder is the reader's
        named = {override.partition("=")[0] for override in overrides if override.startswith("model.")}
        assert named <= {f"model.{field}" for field in MODELS["hf"].model_fields}
        overrides = [override for override in overrides if not override.startswith("model")]
    config = load_recipe(recipe if recipe in recipe_names() else "demo", overrides)
    assert config.train.micro_batches % nproc == 0, f"--nproc {nproc}"


def check(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"no target {words[1]}"
    elif words[:2] == ["pip", "install"]:
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for extra in re.findall(r"[\w-]+", words[-1].partition("[")[2]):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"no extra {extra}"
    elif words[0] == "python" and words[1] == "-m":
        assert importlib.util.find_spec(words[2]) is not None
    elif words[0] in ("python", "cat"):
        assert (ROOT / words[1]).is_file() or words[1].startswith("runs/")
    elif words[0] in ("pytest", ".", "mkdir", "cp", "rm", "for", "git", "export"):
        pass  # not ours
    elif words[0] == "trc2" or "trc2" in words:
        check_ours(words[words.index("trc2") + 1 :])
    else:
        raise AssertionError("a page shows a command that no test knows how to read")


def check_ours(arguments: list[str]) -> None:
    if arguments[0].startswith("--"):
        assert arguments[0] in ("--help", "--version", "--install-completion")
        return
    name, given = parse(arguments)
    overrides = list(given.get("overrides") or [])
    if name in ("train", "config", "data prepare"):
        check_settings(given["recipe"], overrides, given.get("nproc", 1))
    elif name in ("budget", "plan", "bench", "verify") and given["target"] in recipe_names():
        check_settings(given["target"], overrides, 1)
    elif name == "sweep":
        assert given["matrix"] in MATRICES or given["matrix"].endswith(".yaml")
        assert RunConfig.model_fields.keys() >= {override.partition(".")[0] for override in overrides}


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=[f"{page.name}: {command}" for page, command in SHOWN])
def test_a_command_on_a_page_is_one_that_is_taken(page: Path, command: str) -> None:
    if page.name == "plugins.md" and command.startswith("trc2 "):  # its settings are those of the package it makes
        parse(shlex.split(command)[1:])
    else:
        check(command)


@pytest.mark.parametrize(
    "command",
    [
        "trc2 train demo train.sed=1",
        "trc2 train lab_trc3",
        "trc2 train lab_trc2 --nproc 3",
        "trc2 report A --refrence B",
        "trc2 train my.yaml model=hf model.pretraind=X",
        "make demonstration",
        "pip install 'trc2[dcos]'",
        "trc3 train",
    ],
)
def test_a_wrong_command_would_be_found(command: str) -> None:
    with pytest.raises(Exception, match=r"."):
        check(command)


def test_there_are_commands_to_look_at() -> None:
    assert len(SHOWN) > 80
    assert sum(page.name == "paper-on-4-gpus.md" for page, _ in SHOWN) > 20
