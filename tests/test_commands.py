"""Every command that a page shows is valid as it stands, and runs, block by block, with less work.

The first part parses commands letter by letter and builds their recipes. The second part runs them in a folder with
what the pages suppose, with fewer steps and smaller models.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.chats import conversations, write_rows, write_tokenizer
from tests.command import Done, trc2
from tests.conftest import TINY_TASKS, write_task
from trc2.cli import app
from trc2.config import MODELS, RunConfig, load_recipe, recipe_names
from trc2.stream.tokenizer import train_bpe

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]
SHELL = re.compile(r"```(?:bash|console)\n(.*?)```", re.DOTALL)
MATRICES = {path.stem for path in (ROOT / "src" / "trc2" / "matrices").glob("*.yaml")}


@cache
def commands(page: Path) -> list[str]:
    """What a reader would type: lines of shell blocks, in blocks with prompts those behind a dollar. No remarks."""
    typed: list[str] = []
    for block in SHELL.findall(page.read_text(encoding="utf-8")):
        lines = block.replace("\\\n", " ").splitlines()
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")] or lines
        typed += [command for line in lines if (command := re.sub(r"\s+#.*", "", line).strip())]
    return typed


@cache
def command_line() -> Any:
    return typer.main.get_group(app)


def parse(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The command's name and its arguments, as the command line reads them. Nothing runs."""
    command = command_line()
    path = []
    while hasattr(command, "commands"):
        path.append(arguments[0])
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return " ".join(path), command.make_context(" ".join(path), list(arguments)).params


def check_settings(recipe: str, overrides: list[str], nproc: int) -> None:
    """A recipe of ours is built with the overrides. The reader's own may be any, so `demo` stands for it."""
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


SHOWING = [page for page in PAGES if commands(page)]


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_valid(page: Path) -> None:
    for command in commands(page):
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
    assert sum(len(commands(page)) for page in SHOWING) > 80
    assert len(commands(ROOT / "docs" / "paper-on-4-gpus.md")) > 20


# ------------------------------------------------------------------------------------------------------ running them

ADDRESS = "http://127.0.0.1:8000"  # of the server on pages. A test takes a free port
SERVERS: list[Any] = []
# Run by others, or not to be run here. The second word says where or why.
ELSEWHERE = {
    "make setup": "the test run itself begins with it",
    "make test": "this is it",
    "make test-all": "this is it",
    "make demo": "examples: `trc2 train` and `trc2 report` below",
    "make docs": "tests/test_site.py",
    "make lint": "make test",
    "pip install": "tests/test_packaging.py",
    "git clone": "there is no address yet",
    "python examples/": "tests/test_examples.py",
    "python -m studies.lab_data": "tests/studies/test_lab_data.py, from local copies instead of the hub",
    "python benchmarks/": "minutes of measuring, against packages that are not installed here",
    "trc2 diff VERSIONS/": "its hash is that of the reader's model: tests/versions/test_commands.py",
    "trc2 rollback VERSIONS": "the week before may have been refused: tests/versions/test_commands.py",
    "trc2 serve": "it serves until it is stopped: tests/serving",  # with --data, `serve` below starts one
    f"trc2 versions {ADDRESS} --": "the week before may have been refused: tests/serving/test_client.py",
    "trc2 --install-completion": "it would change the reader's shell",
    ". .venv": "make test",
    "pytest": "this is it",
    "python -m tests.fuzz": "tests/test_fuzz.py",
    "trc2 lm-eval": "tests/evaluation/test_lm_eval.py, where the harness is installed",
}
STEPS = [f"stream.tasks.{task}.steps=2" for task in range(3)]
LESS = [
    "train.sequence_length=16", "train.batch_size=2", "train.warmup_steps=1", "model.replay_chunk_length=8",
    "eval.batch_size=2", "eval.max_batches=1", "eval.text_sequences=0", "stream.control_batches=1", "output.threads=1",
]  # fmt: skip
SMALL_WORDS = ["model.vocab_size=300", "stream.tokenizer.vocab_size=300"]
NARROW = ["model.d_model=32"]
SEVERAL_PROCESSES = ["paper-on-4-gpus.md", "distributed.md"]
READ = [page for page in SHOWING if page.name not in (*SEVERAL_PROCESSES, "plugins.md")]  # tests/system/test_plugins.py


@pytest.fixture(scope="session")
def world_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages suppose that a reader has: folders of text, runs, a Llama, a recipe, a matrix."""
    world = tmp_path_factory.mktemp("world")
    for name in ("c4", "wikitext", "gsm8k", "law", "news"):
        write_task(world / "DATA", name, [f"{name}{number}" for number in range(30)])
    for path in (world / "DATA" / "gsm8k").iterdir():
        path.write_text(path.read_text().replace('"text": "', '"answer": "5 #### 5", "question": "'))
    for name in ("NEWS", "CODE", "LAWS", "MAIL", "LAW", "TAX", "INBOX", "OLD"):
        rng = random.Random(name)
        (world / name).mkdir()
        for number in range(120):  # 5 % are held out, and the acceptance check needs two of them
            text = " ".join(f"{name.lower()}{rng.randrange(300)}" for _ in range(100))
            (world / name / f"{number}.txt").write_text(text)
    (world / "notes.txt").write_text("The court shall find. " * 50)
    (world / "new.jsonl").write_text("".join(json.dumps({"text": f"Number {n} of many."}) + "\n" for n in range(20)))
    (world / "mine.yaml").write_text("grids: [{recipes: [lab_trc2], seeds: [0]}]\n")
    tasks = [{"name": name, "folder": name.upper(), "steps": 2} for name in ("news", "code", "laws")]
    own = {"model": {"d_model": 32, "num_columns": 2, "num_heads": 4, "vocab_size": 300, "max_positions": 64}}
    own["model"]["replay_chunk_length"] = 8
    stream = {"data_root": ".", "tokenizer": {"vocab_size": 300}, "tasks": tasks}
    sizes = {"train": {"sequence_length": 16, "batch_size": 2}, "output": {"folder": "runs/my"}}
    (world / "my.yaml").write_text(json.dumps({**own, "stream": stream, **sizes}))
    for name in ("docs", "src"):  # of which the tutorial makes tasks
        (world / name).symlink_to(ROOT / name)
    make_llama(world / "FOLDER")
    for name in ("MODEL", "INSTRUCT"):
        shutil.copytree(world / "FOLDER", world / name)
    write_tokenizer(world / "INSTRUCT")
    write_rows(world / "CHATS" / "chats.jsonl", conversations(100))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        adapters = ["model=hf", "model.pretrained=FOLDER", "model.lora={rank: 2, alpha: 4, targets: [q_proj]}"]
        runs = {
            "runs/demo/trc2": ["demo", *NARROW, "model.num_columns=2"],
            "runs/my": ["my.yaml"],
            "RUN": ["my.yaml", *adapters],
        }
        for folder, words in runs.items():
            ran(trc2("train", *words, f"output.folder={folder}", *LESS, *STEPS), "train")
    others = ["runs/demo/plain", "a", "b", "A", "B", "C"]
    others += [f"{folder}/trc2+s{seed}" for folder in ("runs/lab", "runs/paper", "runs/sweep/demo") for seed in (1, 2)]
    for seed, folder in enumerate(others, start=1):
        shutil.copytree(world / "runs/demo/trc2", world / folder)
        config = world / folder / "config.yaml"
        config.write_text(config.read_text().replace("  seed: 0\n", f"  seed: {seed}\n"))
    return world


def make_llama(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).save_pretrained(folder)
    words = " ".join(word for words in TINY_TASKS.values() for word in words)
    (folder / "tokenizer.json").write_text(train_bpe([words] * 3, 290).to_json())
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


@pytest.fixture
def world(world_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy that the test may change, as the current folder."""
    copy = tmp_path / "world"
    shutil.copytree(world_once, copy, symlinks=True)
    monkeypatch.chdir(copy)
    yield copy
    while SERVERS:
        SERVERS.pop().__exit__(None, None, None)


def ran(done: Done, command: str) -> None:
    codes = (0, 3) if "--max-forgetting" in command else (0,)  # either verdict of the acceptance check will do
    assert done.code in codes, f"{command}\n{done.out[-2000:]}{done.err[-2000:]}"


RAN: set[tuple[object, ...]] = set()


def ran_before(arguments: list[str]) -> bool:
    """Whether an earlier page ran the same: the same command on the same recipe, or a report of as many runs."""
    name, given = parse(arguments)
    if name == "report":
        folders = [str(folder) for folder in given["folders"]]
        kinds = ("+" in "".join(folders), (given["folders"][0] / "config.yaml").exists(), bool(given["reference"]))
        key: tuple[object, ...] = (name, len(folders), *kinds)
    else:
        key = (*arguments, Path("my.yaml").read_text())
    is_known = name in ("report", "train", "init", "verify", "doctor") and key in RAN
    RAN.add(key)
    return is_known


def less(arguments: list[str]) -> list[str]:
    """The same command with fewer steps, processes and smaller text."""
    arguments = ["2" if word == "4" and before == "--nproc" else word for before, word in pairwise(["", *arguments])]
    name, given = parse(arguments)
    if name == "train":
        narrow = [] if given["recipe"].endswith(".yaml") or "model=hf" in arguments else NARROW
        return [*arguments, *LESS, *narrow, *steps_of(given["recipe"]), *less_of(given["recipe"])]
    if name == "teach" and given["steps"] is not None:
        return ["2" if word == str(given["steps"]) else word for word in arguments]
    if name == "data prepare":
        return [*arguments, *LESS, *less_of(given["recipe"])]
    if name == "continue":
        few = ["2" if word == str(given["steps"]) else word for word in arguments]
        return few if "--steps" in few else [*few, "--steps", "2"]
    if name == "sweep":
        return arguments if "--list" in arguments else [*arguments, "--list"]  # tests/sweep carries them out
    if name == "bench":
        sizes = [*LESS[:4], *NARROW, "model.vocab_size=300"]
        return [*arguments, *sizes, "--repeats", "1", "--threads", "1"]
    if name == "verify" and given["target"] != "FOLDER":
        sizes = ["model.vocab_size=300", "model.d_model=32", "model.num_columns=2", "model.memory_slots=64"]
        return [*arguments, *([] if given["target"] else ["paper_compact"]), *sizes]
    return {
        "doctor": [*arguments, *([] if "--quick" in arguments else ["--quick"])],
        "dream": ["300" if word == "100000" else word for word in arguments],
        "init": [*(word for word in arguments if word not in ("--minutes", "3", "10")), "--minutes", "0.2"],
    }.get(name, arguments)


def steps_of(recipe: str) -> list[str]:
    """Two steps for each task of a recipe."""
    tasks = yaml.safe_load(Path(recipe).read_text())["stream"]["tasks"] if recipe.endswith(".yaml") else STEPS
    return STEPS[: len(tasks)]


def less_of(recipe: str) -> list[str]:
    """Words that the little text has. Lab and paper read it from DATA, also where a page would have them download."""
    if recipe.endswith(".yaml") or recipe.startswith("demo"):
        return []
    if not recipe.startswith("paper_"):
        return ["stream.data_root=DATA", *SMALL_WORDS]
    tasks = [f"stream.tasks.{number}.folder={name}" for number, name in enumerate(("c4", "wikitext", "gsm8k"))]
    sizes = ["model.d_model=96", "model.max_positions=64", "train.micro_batches=4", "stream.tokenizer.path=null"]
    is_trc2 = re.fullmatch(r"paper_d\d+_l\d+", recipe)
    depth = ["model.num_columns=2", "model.memory_slots=64"] if is_trc2 else ["model.num_layers=4"]
    return ["stream.data_root=DATA", *tasks, *sizes, *depth, *SMALL_WORDS]


def clear_the_way(arguments: list[str]) -> None:
    """Remove what a command makes, so that it can be made."""
    name, given = parse(arguments)
    made: list[Path] = []
    if name == "train":
        others = [word for word in given["overrides"] or [] if not word.startswith(("model=", "model.", "strategy"))]
        made = [load_recipe(given["recipe"], others).output.folder]
    elif name == "export":
        made = [given["folder"]]
    elif name == "init":
        made = [given["recipe"]]
    elif name == "continue" and not given["tries_shares"]:
        names = [task.partition("=")[0] for task in given["task"]]
        made = [given["folder"] or Path("+".join([str(given["parent"]), *names]))]
    for path in made:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


def serve(arguments: list[str]) -> None:
    """Start the server of a page on a free port, up to the end of the page."""
    for name in ("starlette", "uvicorn", "sqlalchemy", "python_multipart"):
        pytest.importorskip(name)
    from trc2.serving.server import Server, ServerSettings

    _, given = parse(arguments)
    SERVERS.append(Server(ServerSettings(given["model"], port=0, data=given["data"])).__enter__())


def run(command: str) -> None:
    if SERVERS and not any(command.startswith(prefix) for prefix in ELSEWHERE):
        command = command.replace(ADDRESS, SERVERS[-1].url)
    words = shlex.split(command)
    if words[:2] == ["trc2", "serve"] and "--data" in words:
        serve(words[1:])
    elif any(command.startswith(prefix) for prefix in ELSEWHERE):
        pass
    elif words[0] == "torchrun":
        several_machines(words)
    elif words[0] == "trc2" and not words[1].startswith("--"):
        if not ran_before(words[1:]):
            clear_the_way(words[1:])
            ran(trc2(*less(words[1:])), command)
    elif words[0] == "trc2":
        ran(trc2(*words[1:]), command)
    else:
        for name in words[1:] if words[0] == "mkdir" else []:
            shutil.rmtree(name, ignore_errors=True)
        subprocess.run(["bash", "-c", command], check=True)


LONG = ("tutorials/served-model.md", "tutorials/three-folders.md")  # a minute and more


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.as_posix().endswith(LONG) else []) for page in READ],
    ids=[str(page.relative_to(ROOT)) for page in READ],
)
def test_what_a_page_shows_runs_from_top_to_bottom(page: Path, world: Path) -> None:
    for command in commands(page):
        run(command)


@pytest.mark.slow
@pytest.mark.parametrize("page", SEVERAL_PROCESSES)
def test_what_a_page_shows_of_several_processes_runs(page: str, world: Path) -> None:
    RAN.clear()
    shutil.rmtree(world / "runs" / "paper")  # the page itself fills it, and reports nothing but its own runs
    for command in commands(ROOT / "docs" / page):
        run(command)


def several_machines(words: list[str]) -> None:
    """One machine with two processes instead of the machines that a page has."""
    one = {"--nnodes=2": "--nnodes=1", "--nproc_per_node=8": "--nproc_per_node=2"}
    command = [one.get(word, word).replace("HOST:29500", "localhost:0") for word in words]
    start = command.index("trc2") + 1
    clear_the_way(command[start:])
    launcher = [sys.executable, "-m", "torch.distributed.run", *command[1:start]]
    subprocess.run([*launcher, *less(command[start:])], check=True)
