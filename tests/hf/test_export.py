"""Train → export → AutoModel → generate: the run's own checkpoint in another coat."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import trc2.hf  # noqa: F401  # registers the Auto classes
from trc2 import UserError
from trc2.backbones.saved import load_config, load_model
from trc2.cli import app
from trc2.generate.sampling import Sampling, stream_text
from trc2.hf.export import export_run
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from trc2.runs.folder import RunFolder
from trc2.stream.tokenizer import read_tokenizer


def test_the_round_trip_gives_the_same_logits_and_text(trained: Path, tmp_path: Path) -> None:
    export_run(trained, tmp_path / "model", "0")
    own, step = RunFolder(trained).model(print)
    assert step == 12
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    inputs = tokenizer("apple pear plum", return_tensors="pt")
    own.eval()
    assert inputs["input_ids"][0].tolist() == read_tokenizer(trained).encode_batch(["apple pear plum"])[0]
    torch.testing.assert_close(model(inputs["input_ids"]).logits, own(inputs["input_ids"])[0], atol=1e-6, rtol=1e-6)
    assert model.net.num_events == own.num_events > 0
    made = model.generate(inputs["input_ids"], max_new_tokens=6, do_sample=False)
    pieces = stream_text(own, read_tokenizer(trained), "apple pear plum", Sampling(max_tokens=6, temperature=0))
    assert tokenizer.decode(made[0], skip_special_tokens=True) == "apple pear plum" + "".join(pieces)


def test_an_export_is_json_safetensors_and_a_card_without_training_text(trained: Path, tmp_path: Path) -> None:
    written = export_run(trained, tmp_path / "model", "1.2.3")
    names = ["README.md", "config.json", "generation_config.json", "model.safetensors"]
    assert [path.name for path in written] == [*names, "tokenizer.json", "tokenizer_config.json"]
    assert load_config(tmp_path / "model").replay is False
    export_run(trained, tmp_path / "whole", "1.2.3", with_replay=True)
    assert load_config(tmp_path / "whole").replay is True


def test_the_card_tells_order_scores_seeds_data_and_limits(trained: Path, tmp_path: Path) -> None:
    export_run(trained, tmp_path / "model", "1.2.3")
    card = (tmp_path / "model" / "README.md").read_text()
    for part in ("| 1 | fruit | 6 |", "| 2 | tools | 6 |", "| perplexity |", "seed 0", "trc2 1.2.3", "## Limits",
                 "not stated in the recipe", "parameters", "step 12", "AUFC", "fingerprint"):  # fmt: skip
        assert part in card, part
    assert str(tmp_path) not in card


def test_an_export_appears_whole_or_not_at_all(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "deep" / "model"
    partial = target.with_name(".model.partial")
    partial.mkdir(parents=True)  # as a killed export leaves it
    (partial / "model.safetensors").write_text("half")
    whole = export_run(trained, target, "0")
    assert len(whole) == 6
    assert list(target.parent.iterdir()) == [target]
    load_model(target)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert [path.parent for path in export_run(trained, tmp_path / "link", "0")] == [tmp_path / "link"] * 6
    assert len(list((tmp_path / "empty").iterdir())) == 6

    tokenizer = (trained / "tokenizer.json").read_bytes()
    (trained / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        export_run(trained, tmp_path / "never" / "model", "0")
    assert not (tmp_path / "never").exists()
    (trained / "tokenizer.json").write_bytes(tokenizer)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    for taken, sentence in (("mine/file", "is a file: choose a new folder"), ("mine", "is not empty")):
        with pytest.raises(UserError, match=sentence):
            export_run(trained, tmp_path / taken, "0")


@pytest.mark.slow
def test_a_killed_export_leaves_nothing_or_everything(trained: Path, tmp_path: Path) -> None:
    program = """
import itertools, sys
from pathlib import Path
from trc2.hf.export import export_run
for number in itertools.count():
    export_run(Path(sys.argv[1]), Path(sys.argv[2]) / f"model{number}", "0")
    print(number, flush=True)
"""
    rng = random.Random(0)
    for trial in range(4):
        folder = tmp_path / f"trial{trial}"
        with subprocess.Popen(
            [sys.executable, "-c", program, str(trained), str(folder)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()  # the first is done
            time.sleep(rng.random())
            process.kill()
        models = [path for path in folder.iterdir() if not path.name.startswith(".")]
        assert models
        for model in models:
            assert len(list(model.iterdir())) == 6
            load_model(model)
        for left in folder.glob(".*.partial"):
            export_run(trained, folder / left.name.removeprefix(".").removesuffix(".partial"), "0")
        assert not list(folder.glob(".*"))


def test_the_commands_and_the_seed(trained: Path, tmp_path: Path) -> None:
    model, cli = tmp_path / "model", CliRunner()
    assert cli.invoke(app, ["export", str(trained), str(model)]).exit_code == 0
    texts = [
        cli.invoke(app, ["generate", str(where), "--prompt", "apple", "--seed", seed, "--top-p", "0.9"]).stdout
        for where, seed in ((model, "1"), (trained, "1"), (model, "2"))
    ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("apple")
    refused = cli.invoke(app, ["generate", str(model), "--memory", "write"])
    assert (refused.exit_code, "'write' is not one of" in refused.output) == (2, True)


def test_weights_that_are_no_numbers_are_said(trained: Path, tmp_path: Path) -> None:
    newest = load_checkpoint(list_checkpoints(trained / "checkpoints")[-1])
    name = next(name for name in newest.tensors if name.startswith("model.") and name.endswith("weight"))
    newest.tensors[name].view(-1)[0] = torch.nan
    save_checkpoint(trained / "checkpoints", newest)
    said: list[str] = []
    export_run(trained, tmp_path / "model", "0", warn=said.append)
    assert len(said) == 1
    assert "1 tensors of" in said[0]
    assert "NaN or infinity" in said[0]
