"""Every command and the tutorial take the folder of a model of transformers as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.command import trc2
from tests.conftest import write_task
from tests.test_examples import run as run_example
from trc2 import RunConfig
from trc2.config import load_recipe, settings_text
from trc2.config.pretrained import HFConfig
from trc2.costs.benchmarks import prepared_model
from trc2.costs.breakdown import subsystem_runs
from trc2.report.run import read_run

Folder = Callable[[str], Path]
EXAMPLE = Path(__file__).parents[3] / "examples" / "keep_a_model_current.py"
WORDS = {"news": ["apple", "pear", "plum"], "law": ["saw", "axe", "drill"], "code": ["red", "blue", "grey"]}


def test_every_command_takes_the_folder_as_it_is(
    model_folder: Folder, hf_run: Callable[..., RunConfig], tmp_path: Path
) -> None:
    folder = str(model_folder("llama"))
    recipe = tmp_path / "my.yaml"
    settings = hf_run(Path(folder)).model_dump(mode="json")
    chunks = {"replay_chunk_length": 8, "replay_recent_chunks": 4, "replay_long_chunks": 4}
    settings["model"] = {"name": "transformer", "d_model": 64, "replay_batch_size": 2, **chunks}
    settings["stream"]["tokenizer"] = {}
    recipe.write_text(settings_text(settings))
    chosen = load_recipe(str(recipe), ["model=hf", f"model.pretrained={folder}"])
    assert chosen.model.replay_batch_size == 2
    assert chosen.model.replay_share is None  # the recipe chose the paper's way
    assert chosen.stream is not None
    assert chosen.stream.tokenizer.path == folder
    for arguments in (  # docs/huggingface.md has others, which tests/test_commands.py runs
        ("generate", folder, "--prompt", "apple", "--max-new-tokens", "4"),
        ("verify", folder, "--out", str(tmp_path / "verify")),
        ("budget", folder),
    ):
        done = trc2(*arguments)
        assert done.code == 0, (arguments, done.err, done.out[-1500:])
    parts = subsystem_runs(prepared_model(chosen.model), 2, 16)  # of `trc2 bench`
    for run in parts.values():
        run()
    assert "head and loss" in parts
    checks = json.loads((tmp_path / "verify" / "verify.json").read_text())
    assert {"padding, eval", "forward, eval"} <= {check["name"] for check in checks["checks"] if check["passed"]}


def test_init_writes_a_recipe_for_the_model_you_have(model_folder: Folder, tmp_path: Path) -> None:
    llama = model_folder("llama")
    for name in ("news", "laws"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("\n\n".join(f"{name} train {number}: 0123" for number in range(2000)))
    recipe = tmp_path / "mine.yaml"
    folders = [str(tmp_path / "news"), str(tmp_path / "laws")]
    done = trc2("init", *folders, "--model", str(llama), "--minutes", "0.1", "--out", str(recipe))
    assert done.code == 0, done.err
    assert "2 layers of width 32" in done.out
    text = recipe.read_text()
    assert "vocab_size" not in text, "the folder says it"
    config = load_recipe(str(recipe))
    assert isinstance(config.model, HFConfig)
    assert config.model.pretrained == str(llama)
    assert config.model.replay_share == 0.1
    assert config.train.sequence_length <= 64, "no row is longer than the model can read"
    assert [task.name for task in config.stream.tasks] == ["news", "laws"]
    wrong = trc2("init", *folders, "--model", str(tmp_path / "news"), "--out", str(tmp_path / "other.yaml"))
    assert wrong.code == 2
    assert "config.json" in wrong.err


def test_a_llama_folder_learns_two_tasks_and_is_gated_by_what_it_should_keep(
    model_folder: Folder, tmp_path: Path
) -> None:
    words = {"law": "saw axe drill file", "tax": "red blue grey", "news": "apple pear plum fig"}
    for name, choices in words.items():
        write_task(tmp_path, name, choices.split())
    base = shutil.copytree(model_folder("llama"), tmp_path / "base")
    (base / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# Base\n")
    done = trc2(
        "continue", str(base), "train.batch_size=2", "train.sequence_length=32",
        "eval.text_sequences=0", "eval.max_batches=1", "model.replay_chunk_length=16",
        f"stream.cache={tmp_path / 'cache'}",
        "--task", f"law={tmp_path / 'law'}", "--task", f"tax={tmp_path / 'tax'}", "--steps", "2",
        "--keep", f"news={tmp_path / 'news'}", "--max-forgetting", "1e9", "--out", str(tmp_path / "child"), "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert list(json.loads(done.out)["tasks"]) == ["news"]
    run = read_run(tmp_path / "child")
    assert [(span.task, span.start, span.end) for span in run.spans] == [("law", 0, 2), ("tax", 2, 4)]
    assert run.config.model.name == "hf"
    assert run.config.train.learning_rate == 1e-4

    shutil.rmtree(base)  # what the card says of it is in the run
    exported = trc2("export", str(tmp_path / "child"), str(tmp_path / "model"), "--json")
    assert exported.code == 0, exported.err
    _, front, body = (tmp_path / "model" / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(front)
    assert (facts["base_model"], facts["license"], facts["library_name"]) == ("base", "apache-2.0", "transformers")
    assert "import trc2" not in body
    assert "and nothing else" not in body
    assert 'memory="off"' not in body
    assert " documents of news/test" in body  # its verdict
    assert "Measured and not trained: news." in body


def test_a_llama_learns_three_folders_of_text_and_is_a_llama_again(model_folder: Folder, tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    for name, words in WORDS.items():
        write_task(tmp_path / "data", name, words)
    output = run_example(EXAMPLE.name, model_folder("llama"), tmp_path / "data", tmp_path / "out", 5)
    for name in ("news", "law"):
        assert f"{name}: perplexity" in output
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
    assert (tmp_path / "out" / "run+code" / "summary.md").is_file()
