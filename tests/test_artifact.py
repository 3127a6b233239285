from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.conftest import fill_memory, tiny_config, tokens
from trc2 import CortexNet, UserError
from trc2.artifact import load_model, save_model


def test_a_saved_model_comes_back_bit_for_bit(tmp_path: Path) -> None:
    net = CortexNet(tiny_config()).eval()
    fill_memory(net, 6)
    save_model(net, tmp_path)
    again = load_model(tmp_path).eval()
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in net.state_dict().items())
    x = tokens(net.config, 2, 9)
    assert torch.equal(net(x)[0], again(x)[0])
    save_model(net.double(), tmp_path)
    assert load_model(tmp_path).cortex.embedding.weight.dtype == torch.float64
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def _flip(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _change(folder: Path, **values: object) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings["backbone"].update(values)
    (folder / "config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "There is no .*config.json"),
        (lambda f: (f / "config.json").write_text("{"), "is not valid JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "does not describe a model"),
        (
            lambda f: (f / "config.json").write_text('{"schema": 99, "model": {}}'),
            "has schema 99, this version reads 2",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "cannot be read"),
        (_truncate, "cannot be read"),
        (_flip, "is not the file its config.json was saved with"),
        (lambda f: _change(f, d_ff=20), "does not fit its config"),
        (lambda f: _change(f, thalamus=False), "does not fit its config"),
    ],
)
def test_a_damaged_folder_is_told_in_a_sentence(tmp_path: Path, damage: object, message: str) -> None:
    save_model(CortexNet(tiny_config()), tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)
