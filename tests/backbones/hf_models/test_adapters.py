"""Folders of LoRA adapters: trained with default targets, saved, gone on with, and merged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.backbones.hf_models.test_training import own_logits
from tests.command import trc2
from tests.conftest import QUIET, write_task
from tests.distributed.several import together
from tests.training.test_resume import stop_after
from trc2 import RunConfig
from trc2.backbones.saved import load_model
from trc2.config import model_config
from trc2.config.pretrained import HFConfig, describe
from trc2.continuing.acceptance import read_verdict
from trc2.continuing.adapters import adapter_parent
from trc2.errors import UserError
from trc2.hf.export import export_run
from trc2.runs.folder import RunFolder
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_tests import compare_runs

Folder = Callable[[str], Path]
MakeRun = Callable[..., RunConfig]
FEW = {"text_sequences": 0, "max_batches": 1, "every_steps": 6}


def logits_of_peft(base: Path, adapter: Path) -> torch.Tensor:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(adapter)).eval()
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits[0, :, :5]


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return load_model(folder).eval()(torch.arange(12)[None])[0][0, :, :5]


@pytest.mark.parametrize("kind", ["llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gpt2", "qwen2"))])
def test_default_targets_are_trained_resumed_and_saved_for_peft(
    kind: str, model_folder: Folder, hf_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"model": {"lora": {"rank": 2}}, "train": {"learning_rate": 1e-2}, "eval": FEW}
    run = start_run(hf_run(model_folder(kind), **settings), QUIET)
    stop_after(hf_run(model_folder(kind), **settings, output={"folder": tmp_path / "b"}), 5, monkeypatch)
    resume_run(tmp_path / "b", [], QUIET)
    assert compare_runs(run, tmp_path / "b")[0] == []
    export_run(run, tmp_path / "adapter", "0", merge=False)
    torch.testing.assert_close(
        logits_of_peft(model_folder(kind), tmp_path / "adapter"), own_logits(run), atol=1e-5, rtol=1e-4
    )


@pytest.fixture
def adapter(model_folder: Folder, hf_run: MakeRun, tmp_path: Path) -> Path:
    """Adapters of a run, beside a copy of their model."""
    home = tmp_path / "models"
    shutil.copytree(model_folder("llama"), home / "llama")
    lora = {"rank": 2, "alpha": 8, "targets": ["q_proj", "v_proj"]}
    run = start_run(hf_run(home / "llama", {"lora": lora}, train={"learning_rate": 1e-2}, eval=FEW), QUIET)
    export_run(run, home / "adapter", "0", merge=False)
    return home / "adapter"


def test_a_folder_of_adapters_is_gone_on_with_as_lora_or_merged(
    adapter: Path, model_folder: Folder, tmp_path: Path
) -> None:
    expected = logits_of_peft(adapter.with_name("llama"), adapter)
    torch.testing.assert_close(logits(adapter), expected, atol=1e-5, rtol=1e-4)
    write_task(tmp_path, "colours", ["red", "blue", "green", "grey"])
    sizes = ["train.batch_size=2", "train.sequence_length=16", "model.replay_chunk_length=8", "eval.batch_size=4"]
    arguments = ["--task", f"colours={tmp_path / 'colours'}", "--steps", "2", f"stream.cache={tmp_path / 'cache'}"]
    done = trc2("continue", str(adapter), *arguments, *sizes, "--out", str(tmp_path / "child"))
    assert done.code == 0, done.err
    child = RunFolder(tmp_path / "child")
    model = child.config().model
    assert isinstance(model, HFConfig)
    assert model.lora is not None
    assert (model.lora.rank, model.lora.alpha, model.lora.targets) == (2, 8.0, ("q_proj", "v_proj"))
    assert (model.pretrained, model.adapter) == (str(adapter.with_name("llama")), str(adapter))
    first = child.model_of(child.checkpoint_of(0)).eval()
    with torch.no_grad():
        torch.testing.assert_close(first(torch.arange(12)[None])[0][0, :, :5], expected, atol=1e-5, rtol=1e-4)
    verdict = read_verdict(child)
    assert verdict is not None
    assert verdict.drifts[0].nats.value > 0
    export_run(child.path, tmp_path / "later", "0", merge=False)
    later = logits_of_peft(adapter.with_name("llama"), tmp_path / "later")
    torch.testing.assert_close(later, own_logits(child.path), atol=1e-5, rtol=1e-4)
    assert (later - expected).abs().max() > 0

    done = trc2("continue", str(adapter), *arguments, *sizes, "--merge", "--out", str(tmp_path / "whole"))
    assert done.code == 0, done.err
    whole = RunFolder(tmp_path / "whole").config().model
    assert isinstance(whole, HFConfig)
    assert (whole.lora, whole.pretrained) == (None, str(adapter.with_name("adapter+merged")))
    torch.testing.assert_close(logits(adapter.with_name("adapter+merged")), expected, atol=1e-5, rtol=1e-4)


def test_the_model_of_adapters_is_looked_for_and_may_be_named(adapter: Path, tmp_path: Path) -> None:
    expected = logits(adapter)
    assert describe(str(adapter))["max_positions"] == 64  # what `trc2 init --model` asks for
    base = adapter.with_name("llama").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="names llama as the model of its adapters"):
        load_model(adapter)
    (tmp_path / "colours").mkdir()
    done = trc2("continue", str(adapter), "--task", f"c={tmp_path / 'colours'}", "--base", str(tmp_path / "nowhere"))
    assert (done.code, "is not the folder of a model" in done.err) == (2, True)
    done = trc2("continue", str(adapter), "--task", f"c={tmp_path / 'colours'}", "--base", str(base))
    assert done.code == 2  # the task's folder is empty
    torch.testing.assert_close(logits(adapter.with_name("adapter+base")), expected)
    copied = str(adapter.with_name("adapter+base"))
    by_setting = model_config({"name": "hf", "pretrained": str(base), "adapter": copied})
    assert isinstance(by_setting, HFConfig)
    assert by_setting.lora is not None


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Files of adapters, and of a model beside them, that are copied and not read."""
    for name in ("small", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "small" / "adapter_config.json").write_text("{}")
    (tmp_path / "small" / "adapter_model.safetensors").write_bytes(b"weights")
    return tmp_path / "small"


def test_a_folder_that_was_not_made_from_adapters_is_never_replaced(small: Path) -> None:
    folder, model = small.with_name("small+base"), small.with_name("model")
    folder.mkdir()
    (folder / "thesis.txt").write_text("the only copy")
    with pytest.raises(UserError, match=r"small\+base was not made by --base or --merge"):
        adapter_parent(small, model, merge=False)
    assert (folder / "thesis.txt").read_text() == "the only copy"
    shutil.rmtree(folder)
    for weights in (b"weights", b"others"):  # its own folder is replaced
        (small / "adapter_model.safetensors").write_bytes(weights)
        assert adapter_parent(small, model, merge=False) == folder
        assert (folder / "adapter_model.safetensors").read_bytes() == weights


def rebase_as_worker(small: Path) -> tuple[bytes, int]:
    os.environ["TORCHELASTIC_RUN_ID"] = "one"
    folder = adapter_parent(small, small.with_name("model"), merge=False)
    return (folder / "adapter_model.safetensors").read_bytes(), folder.stat().st_ino


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_the_first_worker_writes_the_folder_and_the_others_wait(small: Path) -> None:
    model = small.with_name("model")
    found = together(3, rebase_as_worker, small)  # as with a plain torchrun, at the same time
    assert len(set(found)) == 1
    assert together(3, rebase_as_worker, small) == found  # not written again, as with --nproc
    (small / "adapter_model.safetensors").write_bytes(b"others")
    later = together(3, rebase_as_worker, small)
    assert {content for content, _ in later} == {b"others"}
    assert len(set(later)) == 1
    other = small.with_name("other")
    shutil.copytree(model, other)
    settings = adapter_parent(small, other, merge=False) / "adapter_config.json"
    together(2, rebase_as_worker, small)  # the adapters are the same, but their model is another one
    assert json.loads(settings.read_text())["base_model_name_or_path"] == str(model)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"peft_type": "IA3"}, "only LORA can be continued"),
        ({"use_dora": True}, "has use_dora=True, which model.lora does not have"),
        ({"target_modules": ".*_proj"}, "which is not a list of names"),
        ({"target_modules": ["q_proj"]}, "does not fit its model"),
    ],
)
def test_adapters_of_another_kind_are_refused(adapter: Path, change: dict[str, object], sentence: str) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=sentence):
        load_model(adapter)


def test_new_adapters_are_interpolated_by_scaling_b_and_continued_ones_are_refused(
    adapter: Path, model_folder: Folder, tmp_path: Path
) -> None:
    write_task(tmp_path, "colours", ["red", "blue", "green", "grey"])
    sizes = ["train.batch_size=2", "train.sequence_length=16", "model.replay_chunk_length=8", "eval.batch_size=4"]
    arguments = [
        "--task",
        f"colours={tmp_path / 'colours'}",
        "--steps",
        "1",
        f"stream.cache={tmp_path / 'cache'}",
        *sizes,
    ]
    lora = ["model.lora={rank: 2}", "train.learning_rate=0.01"]
    plain = ["continue", str(model_folder("llama")), *arguments, *lora]
    assert trc2(*plain, "--out", str(tmp_path / "whole")).code == 0
    done = trc2(*plain, "--out", str(tmp_path / "half"), "--interpolate", "0.5")
    assert done.code == 0, done.err
    whole, half = (RunFolder(tmp_path / name).checkpoint_of(1).part("model") for name in ("whole", "half"))
    moved = [name for name in whole if ".lora_B." in name]
    assert moved
    for name in whole:
        torch.testing.assert_close(half[name], whole[name] * 0.5 if name in moved else whole[name])
    refused = trc2("continue", str(adapter), *arguments, "--interpolate", "0.5", "--out", str(tmp_path / "none"))
    assert (refused.code, "no straight line" in refused.err) == (2, True)
