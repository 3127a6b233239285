from __future__ import annotations

import pytest
import torch

from trc2.errors import UserError
from trc2.system.precision import autocast, choose_device, choose_dtype, loss_scaler


def test_a_cpu_gets_float32_unless_told() -> None:
    cpu = torch.device("cpu")
    assert choose_dtype("auto", cpu) == torch.float32
    assert choose_dtype("bfloat16", cpu) == torch.bfloat16


@pytest.mark.parametrize(("major", "expected"), [(7, torch.float16), (8, torch.bfloat16), (9, torch.bfloat16)])
def test_a_gpu_gets_what_it_has_natively(major: int, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    assert choose_dtype("auto", torch.device("cuda")) == expected


def test_only_float16_is_scaled() -> None:
    cpu = torch.device("cpu")
    assert loss_scaler(cpu, torch.float16).is_enabled()
    assert not loss_scaler(cpu, torch.bfloat16).is_enabled()
    with autocast(cpu, torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with autocast(cpu, torch.float32):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("quantum", "is not a device"), ("cpu:x", "is not a device"), ("", "is not a device"), ("meta", "never tested"),
        ("mps", "never tested"), ("xla", "never tested"), ("cuda", "is not available on this machine"),
    ],
)  # fmt: skip
def test_a_device_that_cannot_be_used_is_refused(name: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=rf"output\.device='{name}' .*{reason}"):
        choose_device(name)


def test_every_process_of_a_machine_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    group = {"WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "RANK": 3, "LOCAL_RANK": 1, "MASTER_ADDR": "localhost"}
    for name, value in group.items():
        monkeypatch.setenv(name, str(value))
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 1)
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="is one device for 4 processes: use auto or cuda"):
        choose_device("cuda:0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(UserError, match="This machine has 2 GPUs for 3 processes: start at most as many"):
        choose_device("auto")
