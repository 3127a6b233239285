"""Every command that a page shows runs, block by block, in a folder with what the page supposes; only less of it.

`tests/test_commands_in_docs.py` checks the same commands as they stand, letter by letter, without running them.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import Done, trc2
from tests.conftest import TINY_TASKS, write_task
from tests.test_commands_in_docs import PAGES, ROOT, commands, parse
from trc2.config import RunConfig, load_recipe, recipe_names
from trc2.stream.tokenizer import train_bpe

# Run by others, or not to be run here; the second word says where or why.
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
TRC2_OF_THE_PAPER = [name for name in recipe_names() if re.fullmatch(r"paper_d\d+_l\d+", name)]
APART = [
    "plugins.md",
    "paper-on-4-gpus.md",
    "distributed.md",
]  # the first: tests/system/test_plugins.py; the others: below
READ = [page for page in PAGES if page.name not in APART and commands(page)]


@pytest.fixture(scope="session")
def world_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages suppose that a reader has: folders of text, runs, a Llama, a recipe, a matrix."""
    world = tmp_path_factory.mktemp("world")
    for name in ("c4", "wikitext", "gsm8k", "law", "news"):
        write_task(world / "DATA", name, [f"{name}{number}" for number in range(30)])
    for path in (world / "DATA" / "gsm8k").iterdir():
        path.write_text(path.read_text().replace('"text": "', '"answer": "5 #### 5", "question": "'))
    for name in ("NEWS", "CODE", "LAWS", "MAIL", "LAW", "TAX"):
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
    shutil.copytree(world / "FOLDER", world / "MODEL")
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as here:
        here.chdir(world)
        adapters = ["model=hf", "model.pretrained=FOLDER", "model.lora={rank: 2, alpha: 4, targets: [q_proj]}"]
        runs = {"runs/demo/trc2": ["demo"], "runs/my": ["my.yaml"], "RUN": ["my.yaml", *adapters]}
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
def world(world_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the reader's own, to stand in."""
    here = tmp_path / "world"
    shutil.copytree(world_once, here, symlinks=True)
    monkeypatch.chdir(here)
    return here


def ran(done: Done, command: str) -> None:
    gate = "--max-forgetting" in command  # a verdict is as good as another
    assert done.code in ((0, 3) if gate else (0,)), f"{command}\n{done.out[-2000:]}{done.err[-2000:]}"


def less(arguments: list[str]) -> list[str]:
    """The same command with fewer steps and smaller text."""
    name, given = parse(arguments)
    if name == "train":
        return [*arguments, *LESS, *STEPS, *less_of(given["recipe"])]
    if name == "data prepare":
        return [*arguments, *LESS, *less_of(given["recipe"])]
    if name == "continue" and given["steps"] is None:
        return [*arguments, "--steps", "2"]
    if name == "continue":
        return ["2" if word == str(given["steps"]) else word for word in arguments]
    if name == "sweep" and given["matrix"] != "mine.yaml":
        return arguments if "--list" in arguments else [*arguments, "--list"]  # tests/sweep carries them out
    if name == "sweep":
        return [*arguments, *LESS, *STEPS, *SMALL_WORDS]
    if name == "bench":
        sizes = [*LESS[:4], "model.vocab_size=300"]
        return [*arguments, *sizes, "--repeats", "1", "--threads", "1"]
    if name == "verify" and given["target"] != "FOLDER":
        return arguments if given["target"] else [*arguments, "paper_compact", "model.vocab_size=300"]
    return {
        "doctor": [*arguments, *([] if "--quick" in arguments else ["--quick"])],
        "dream": ["300" if word == "100000" else word for word in arguments],
        "init": ["1" if word in ("3", "10") else word for word in arguments],
    }.get(name, arguments)


def less_of(recipe: str) -> list[str]:
    """Words that the little text has; lab and paper read it from DATA, also where a page would have them download."""
    if recipe.endswith(".yaml") or recipe.startswith("demo"):
        return []
    if not recipe.startswith("paper_"):
        return ["stream.data_root=DATA", *SMALL_WORDS]
    tasks = [f"stream.tasks.{number}.folder={name}" for number, name in enumerate(("c4", "wikitext", "gsm8k"))]
    sizes = ["model.d_model=96", "model.max_positions=64", "train.micro_batches=4", "stream.tokenizer.path=null"]
    depth = ["model.num_columns=2", "model.memory_slots=64"] if recipe in TRC2_OF_THE_PAPER else ["model.num_layers=4"]
    return ["stream.data_root=DATA", *tasks, *sizes, *depth, *SMALL_WORDS]


def clear_the_way(arguments: list[str]) -> None:
    """What a command makes is not there yet."""
    name, given = parse(arguments)
    made: list[Path] = []
    if name == "train":
        made = [load_any(given["recipe"], list(given["overrides"] or [])).output.folder]
    elif name == "export":
        made = [given["folder"]]
    elif name == "init":
        made = [given["recipe"]]
    for path in made:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


def load_any(recipe: str, overrides: list[str]) -> RunConfig:
    return load_recipe(recipe, [word for word in overrides if not word.startswith(("model=", "model.", "strategy"))])


def run(command: str) -> None:
    words = shlex.split(command)
    if any(command.startswith(prefix) for prefix in ELSEWHERE):
        return
    if words[0] == "torchrun":
        several_machines(words)
    elif words[0] == "trc2" and not words[1].startswith("--"):
        clear_the_way(words[1:])
        ran(trc2(*less(words[1:])), command)
    elif words[0] == "trc2":
        ran(trc2(*words[1:]), command)
    else:
        for name in words[1:] if words[0] == "mkdir" else []:
            shutil.rmtree(name, ignore_errors=True)
        subprocess.run(["bash", "-c", command], check=True)


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_runs_from_top_to_bottom(page: Path, world: Path) -> None:
    for command in commands(page):
        run(command)


@pytest.mark.slow
@pytest.mark.parametrize("page", APART[1:])
def test_what_a_page_shows_of_several_processes_runs(page: str, world: Path) -> None:
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
