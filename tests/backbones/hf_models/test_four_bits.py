"""Averages of the optimizer in eight bits, and frozen weights in four bits, through bitsandbytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import QUIET
from tests.training.test_resume import stop_after
from trc2 import RunConfig
from trc2.backbones.registry import build_model
from trc2.backbones.saved import load_model
from trc2.errors import UserError
from trc2.hf.export import export_run
from trc2.runs.folder import RunFolder
from trc2.system.rng import keyed_generator
from trc2.training.optimizer import build_optimizer
from trc2.training.parallel import build_parallel
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_tests import compare_runs

Folder = Callable[[str], Path]
MakeRun = Callable[..., RunConfig]
FEW = {"text_sequences": 0, "max_batches": 1, "every_steps": 6}
LORA = {"rank": 4}


@pytest.fixture
def _has_bitsandbytes() -> None:
    pytest.importorskip("bitsandbytes", reason="an extra that most machines lack")


needs_it = pytest.mark.usefixtures("_has_bitsandbytes")


def test_without_the_package_both_settings_are_one_sentence(
    model_folder: Folder, hf_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as if it were not installed
    config = hf_run(model_folder("llama"), {"lora": LORA, "quantize": "nf4"}, train={"optimizer": "adamw_8bit"})
    with pytest.raises(UserError, match=r"model\.quantize=nf4 needs bitsandbytes: install it with .*\[bitsandbytes\]"):
        build_model(config.model, keyed_generator("weights", 0))
    net = build_model(config.model.replace(quantize=None))
    with pytest.raises(UserError, match=r"train\.optimizer=adamw_8bit needs bitsandbytes"):
        build_optimizer(net, config.train)


def test_four_bits_are_for_frozen_weights(model_folder: Folder, hf_run: MakeRun) -> None:
    with pytest.raises(UserError, match="quantize=nf4 is for frozen weights"):
        hf_run(model_folder("llama"), {"quantize": "nf4"})


@needs_it
@pytest.mark.slow
def test_averages_of_eight_bits_are_resumed_to_the_bit(
    model_folder: Folder, hf_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str) -> RunConfig:
        settings = {"optimizer": "adamw_8bit"}
        output = {"folder": tmp_path / name, "checkpoint_every": 4}
        return hf_run(model_folder("llama"), train=settings, eval=FEW, output=output)

    start_run(config("whole"), QUIET)
    stop_after(config("parted"), 5, monkeypatch)
    resume_run(tmp_path / "parted", [], QUIET)
    assert compare_runs(tmp_path / "whole", tmp_path / "parted")[0] == []
    saved = RunFolder(tmp_path / "whole").newest_checkpoint(print)
    assert saved is not None
    kinds = {tensor.dtype for name, tensor in saved.tensors.items() if name.endswith((".state1", ".state2"))}
    assert torch.uint8 in kinds  # small tensors keep float32


@needs_it
@pytest.mark.slow
def test_adapters_learn_on_weights_of_four_bits_and_are_merged_into_the_whole_ones(
    model_folder: Folder, hf_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder("llama")

    def config(name: str) -> RunConfig:
        output = {"folder": tmp_path / name, "checkpoint_every": 4}
        return hf_run(folder, {"lora": LORA, "quantize": "nf4"}, eval=FEW, output=output)

    start_run(config("whole"), QUIET)
    stop_after(config("parted"), 5, monkeypatch)
    resume_run(tmp_path / "parted", [], QUIET)
    assert compare_runs(tmp_path / "whole", tmp_path / "parted")[0] == []
    run = RunFolder(tmp_path / "whole")
    saved = run.newest_checkpoint(print)
    assert saved is not None
    assert all(".lora_" in name for name in saved.part("model") if name.startswith("trunk."))

    net, _ = run.model(print)
    packed = [name for name, tensor in net.named_parameters() if tensor.dtype == torch.uint8]
    assert len(packed) == 14  # four maps of attention and three of the feed-forward part, in two blocks
    export_run(run.path, tmp_path / "exported", "0")
    tokens = torch.arange(24)[None]
    first, whole = load_model(folder).eval(), load_model(tmp_path / "exported").eval()
    assert [p.dtype for p in whole.parameters()] == [p.dtype for p in first.parameters()]
    with torch.no_grad():
        before, rounded, exact = (model.eval()(tokens)[0] for model in (first, net, whole))
    assert not torch.equal(exact, before)
    assert (rounded - exact).norm() < 0.3 * exact.norm()  # four bits are coarse, and the same function

    weights = folder / "model.safetensors"
    original = weights.read_bytes()
    weights.write_bytes(original + b" ")
    try:
        with pytest.raises(UserError, match="are not those that"):
            run.model(print)
    finally:
        weights.write_bytes(original)


@needs_it
def test_divided_weights_are_refused(model_folder: Folder, hf_run: MakeRun) -> None:
    from trc2.distributed.group import Ranks

    class Two(Ranks):
        world = 2

    config = hf_run(model_folder("llama"), {"lora": LORA, "quantize": "nf4"})
    net = build_model(config.model, keyed_generator("weights", 0))
    with pytest.raises(UserError, match="cannot divide weights of 4 bits"):
        build_parallel(net, Two(), "fsdp", torch.float32, torch.device("cpu"))
