"""A model folder through a stream of tasks: training, resume to the bit, new tasks, export, and every command."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from rich.console import Console

from tests.command import trc2
from tests.conftest import write_task
from tests.training.test_resume import stop_after
from trc2 import RunConfig
from trc2.api.arguments import as_overrides, run_config
from trc2.backbones.registry import build_model
from trc2.config import TaskConfig, load_recipe, settings_text
from trc2.continuing.continue_run import continue_run
from trc2.errors import UserError
from trc2.hf.export import export_run
from trc2.runs.folder import RunFolder
from trc2.training.resume import resume_run
from trc2.training.setup import start_run, warn_if_fast
from trc2.verify.kill_tests import compare_runs

QUIET = Console(quiet=True)
Folder = Callable[[str], Path]
MakeRun = Callable[..., RunConfig]
WITHOUT_US = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
for job in sys.argv[1:]:
    folder, *adapters = job.split("+")
    model = AutoModelForCausalLM.from_pretrained(folder)
    if adapters:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, adapters[0])
    else:
        assert AutoTokenizer.from_pretrained(folder)("apple")["input_ids"]
    print(json.dumps(model.eval()(torch.arange(12)[None]).logits[0, :, :5].tolist()))
assert not any(name.split(".")[0] == "trc2" for name in sys.modules)
"""


def test_a_section_of_python_is_the_override_and_a_rate_for_new_weights_is_warned_of(model_folder: Folder) -> None:
    folder = str(model_folder("llama"))
    short = ["train.sequence_length=32", "model.replay_chunk_length=16"]
    given = run_config("demo", None, None, [*as_overrides({"model": {"name": "hf", "pretrained": folder}}), *short])
    assert given == run_config("demo", None, None, ["model=hf", f"model.pretrained={folder}", *short])
    shown = io.StringIO()
    warn_if_fast(given, Console(file=shown, width=1000))
    assert "train.learning_rate=0.003" in shown.getvalue()
    shown.truncate(0)
    warn_if_fast(given.replace(train={"learning_rate": 1e-4, "sequence_length": 32}), Console(file=shown))
    assert not shown.getvalue().strip("\0")


def logits_without_us(*jobs: str) -> list[torch.Tensor]:
    """Of the first twelve tokens, by a process in which trc2 is never imported. FOLDER, or FOLDER+ADAPTERS."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT_US, *jobs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [torch.tensor(json.loads(line)) for line in done.stdout.splitlines()]


def own_logits(run: Path) -> torch.Tensor:
    net, _ = RunFolder(run).model(print)
    with torch.no_grad():
        return net.eval()(torch.arange(12)[None])[0][0, :, :5]


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("qwen2", "qwen3", "mamba")]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral", *SLOW])
def test_it_learns_resumes_to_the_bit_and_exports_to_transformers_alone(
    kind: str, model_folder: Folder, hf_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(model_folder(kind), tmp_path / kind))
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    model: dict[str, object] = {"dropout": 0.1} if kind == "gpt2" else {}

    def config(name: str) -> RunConfig:
        return hf_run(folder, model, output={"folder": tmp_path / name}, train={"learning_rate": 3e-3})

    start_run(config("whole"), QUIET)
    records = RunFolder(tmp_path / "whole").records()
    losses = [record.metrics["train/loss_lm"] for record in records if record.kind == "train"]
    assert losses[5] < losses[0]
    assert any(record.metrics.get("train/loss_replay", 0.0) > 0 for record in records)
    assert any("replay/share" in record.metrics for record in records if record.kind == "control")

    stop_after(config("parted"), 7, monkeypatch)
    shutil.rmtree(folder)  # a run needs its first folder no more
    resume_run(tmp_path / "parted", [], QUIET)
    differences, tensors, _ = compare_runs(tmp_path / "whole", tmp_path / "parted")
    assert differences == []
    assert tensors > 30

    export_run(tmp_path / "parted", tmp_path / "exported", "0")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    with torch.no_grad():
        found = theirs(torch.arange(12)[None]).logits[0, :, :5]
    torch.testing.assert_close(found, own_logits(tmp_path / "whole"))
    settings = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert settings["architectures"][0].endswith(("ForCausalLM", "LMHeadModel"))
    assert settings.get("attn_pdrop", 0.1) == 0.1  # dropout of our training is not a property of the model
    card = (tmp_path / "exported" / "README.md").read_text()
    assert f"It began with `{kind}`, whose `model.safetensors` has the sha256 `{checksum}`." in card
    assert str(tmp_path) not in card


def test_adapters_learn_alone_and_are_merged_or_kept(model_folder: Folder, hf_run: MakeRun, tmp_path: Path) -> None:
    folder, run = model_folder("gpt2"), tmp_path / "run"
    model = {"lora": {"rank": 2, "alpha": 8, "targets": ["c_attn", "c_proj"]}}
    start_run(hf_run(folder, model, train={"learning_rate": 1e-2}), QUIET)
    expected = own_logits(run)
    export_run(run, tmp_path / "merged", "0")
    export_run(run, tmp_path / "adapter", "0", merge=False)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == "gpt2"
    merged, kept, before = logits_without_us(str(tmp_path / "merged"), f"{folder}+{tmp_path / 'adapter'}", str(folder))
    torch.testing.assert_close(merged, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(kept, expected, atol=1e-5, rtol=1e-4)
    assert (before - expected).abs().max() > 1e-3
    start_run(hf_run(folder, output={"folder": tmp_path / "full"}), QUIET)
    with pytest.raises(UserError, match="it has no adapters: leave --adapter out"):
        export_run(tmp_path / "full", tmp_path / "none", "0", merge=False)
    with pytest.raises(UserError, match="has no place for replay stores"):
        export_run(tmp_path / "full", tmp_path / "none", "0", with_replay=True)


def test_a_new_task_strategies_and_recomputation_work_as_on_any_backbone(
    model_folder: Folder, hf_run: MakeRun, tmp_path: Path
) -> None:
    folder = model_folder("llama")
    start_run(hf_run(folder, strategy={"name": "ewc"}, output={"recompute": True}), QUIET)
    write_task(tmp_path, "colours", ["red", "blue", "green", "grey"])
    task = TaskConfig(name="colours", folder=str(tmp_path / "colours"), steps=4)
    continue_run(tmp_path / "run", tmp_path / "child", task, QUIET)
    assert RunFolder(tmp_path / "child").first_weights() == RunFolder(tmp_path / "run").first_weights()
    last = [record for record in RunFolder(tmp_path / "child").records() if record.kind == "eval"][-1]
    assert {"eval/fruit/perplexity", "eval/colours/perplexity"} <= last.metrics.keys()
    first = [r for r in RunFolder(tmp_path / "child").records() if r.kind == "eval" and r.step == 0][-1]
    assert first.metrics["eval/colours/perplexity"] > 100  # the folder's own weights, before any training


@pytest.mark.slow
def test_recomputing_changes_no_number(model_folder: Folder, hf_run: MakeRun, tmp_path: Path) -> None:
    for name, recompute in (("plain", False), ("again", True)):
        start_run(hf_run(model_folder("llama"), output={"folder": tmp_path / name, "recompute": recompute}), QUIET)
    assert compare_runs(tmp_path / "plain", tmp_path / "again")[0] == []


def test_the_tokenizer_and_its_own_marks_come_from_the_folder(
    model_folder: Folder, hf_run: MakeRun, tmp_path: Path
) -> None:
    import tokenizers
    from tokenizers.processors import TemplateProcessing

    folder = Path(shutil.copytree(model_folder("llama"), tmp_path / "llama"))
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["<begin>", "<over>"])
    begin, over = backend.token_to_id("<begin>"), backend.token_to_id("<over>")
    backend.post_processor = TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", begin)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<over>"}}))
    config = hf_run(folder)
    start_run(config, QUIET)
    tokenizer = RunFolder(tmp_path / "run").tokenizer()
    assert tokenizer.end_of_text == over
    from trc2.stream.prepare import prepare_stream

    packed = prepare_stream(config.stream, tokenizer=tokenizer).tasks["fruit"].tokens("train")
    assert packed[0] == begin
    assert over in packed
    assert 0 not in packed
    assert trc2("generate", str(tmp_path / "run"), "--prompt", "apple", "--max-new-tokens", "3").code == 0


def test_verify_catches_a_folder_whose_attention_looks_ahead(
    model_folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from transformers.models.llama import modeling_llama

    from trc2.backbones.saved import load_model
    from trc2.verify import run_checks

    net = load_model(model_folder("llama"))
    blind = lambda inputs_embeds, **_: inputs_embeds.new_zeros(1, 1, inputs_embeds.shape[1], 1)  # noqa: E731
    monkeypatch.setattr(modeling_llama, "create_causal_mask", blind)
    failed = {check.name for check in run_checks(net).failed}
    assert {"forward, eval", "gradient, eval", "padding, eval"} <= failed
    with pytest.raises(UserError, match="that looks at later tokens"):
        load_model(model_folder("llama"))


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(model_folder: Folder, hf_run: MakeRun, tmp_path: Path) -> None:
    for name, processes in (("one", 1), ("two", 2)):
        config = hf_run(model_folder("mixtral"), output={"folder": tmp_path / name, "check_ranks": True})
        recipe = tmp_path / f"{name}.yaml"
        recipe.write_text(settings_text(config.model_dump(mode="json")))
        command = [sys.executable, "-m", "trc2.cli", "train", str(recipe), "--nproc", str(processes)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    torch.testing.assert_close(own_logits(tmp_path / "one"), own_logits(tmp_path / "two"), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_adapters_go_into_all_linear_maps_unless_told_otherwise(kind: str, model_folder: Folder) -> None:
    model = ["model=hf", f"model.pretrained={model_folder(kind)}", "model.lora={rank: 2}"]
    config = load_recipe("demo", [*model, "train.sequence_length=16", "model.replay=false"])
    net = build_model(config.model, torch.Generator().manual_seed(0))
    adapted = {name.split(".lora_")[0].rsplit(".", 1)[1] for name, p in net.named_parameters() if p.requires_grad}
    expected = {"c_attn", "c_proj", "c_fc"} if kind == "gpt2" else {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
    }  # fmt: skip
    assert adapted == expected


def test_weights_that_were_changed_before_the_first_checkpoint_are_refused(
    model_folder: Folder, hf_run: MakeRun, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(model_folder("llama"), tmp_path / "llama"))
    run = start_run(hf_run(folder), QUIET)
    shutil.rmtree(run / "checkpoints")  # as a kill before the first one leaves it
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match=r"not those that .*run began with"):
        resume_run(run, [], QUIET)
