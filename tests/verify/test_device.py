"""The checks on a device, run on the CPU in its place. Those marked `gpu` need a real one."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from tests.command import trc2
from tests.conftest import tiny_config
from trc2 import CortexNet, UserError
from trc2.verify.check import ModelUnderTest
from trc2.verify.device import CLAIMS, decoding_on, device_checks, ranks_on, same_as_on_the_cpu, training_on
from trc2.verify.kill_tests import WORDS, write_small_data

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def subject() -> ModelUnderTest:
    return ModelUnderTest(CortexNet(tiny_config()))


def test_a_network_agrees_with_itself_and_its_decoding() -> None:
    checks = [*same_as_on_the_cpu(subject(), "cpu"), decoding_on(subject().model, "cpu")]
    assert [check.passed for check in checks] == [True, True, True]


class Elsewhere(CortexNet):
    """Computes something else after it was moved."""

    def to(self, *args: object, **kwargs: object) -> CortexNet:
        moved = super().to(*args, **kwargs)
        if args[0] == "cpu" and len(args) == 1:
            with torch.no_grad():
                moved.cortex.columns[0].attention.qkv.weight.mul_(1.01)
        return moved


def test_a_device_that_computes_something_else_is_seen() -> None:
    checks = same_as_on_the_cpu(ModelUnderTest(Elsewhere(tiny_config())), "cpu")
    assert [check.passed for check in checks] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_a_small_run_trains_and_resumes(precision: str, tmp_path: Path) -> None:
    write_small_data(tmp_path / "data", WORDS)
    checks = training_on(tmp_path, "cpu", precision)
    assert [check.passed for check in checks] == [True, True], checks


@pytest.mark.slow
def test_two_ranks_are_compared_with_one_process(tmp_path: Path) -> None:
    write_small_data(tmp_path / "data", WORDS)
    assert ranks_on(tmp_path, "cpu", 2).passed


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UserError, match="is not a device"):
        device_checks(subject(), "x")


def test_without_a_device_every_check_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    checks = device_checks(subject(), "cuda")
    assert [check.name for check in checks] == list(CLAIMS)
    assert all(check.passed is None and check.note == "skipped: torch sees no CUDA device" for check in checks)
    assert ranks_on(tmp_path, "cuda", 1).note == "skipped: there is 1 device, and ranks need 2"


def test_the_command_says_what_it_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small = ["model.d_model=32", "model.vocab_size=64", "model.num_columns=2", "model.memory_slots=32"]
    done = trc2("verify", "demo", *small, "--device", "cuda", "--out", str(tmp_path))
    assert done.code == 0, done.err
    assert done.out.count("skipped: torch sees no CUDA device") == len(CLAIMS)


@pytest.mark.gpu
@needs_gpu
def test_every_check_holds_on_a_gpu() -> None:
    failed = [check for check in device_checks(subject(), "cuda") if check.passed is False]
    assert failed == []


@pytest.mark.gpu
@needs_gpu
def test_decoding_on_a_gpu_equals_the_cpu() -> None:
    net = CortexNet(tiny_config()).double().eval()
    there = copy.deepcopy(net).cuda()
    ids = torch.randint(net.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(there(ids.cuda())[0].cpu(), net(ids)[0], atol=1e-9, rtol=0)
