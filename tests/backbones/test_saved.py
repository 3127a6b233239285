from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.backbones.common import tiny_baseline
from tests.conftest import fill_memory, tiny_config, tokens
from trc2 import CortexNet, UserError
from trc2.backbones.registry import build_model
from trc2.backbones.saved import check_memory, load_config, load_model, save_model
from trc2.config import MODELS, BackboneConfig, load_recipe


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


def _replace(folder: Path, dtype: torch.dtype) -> None:
    """The same shapes, but other numbers."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    safetensors.torch.save_file({k: t.to(dtype) for k, t in tensors.items()}, folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    del settings["sha256"]
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
        (lambda f: (f / "config.json").write_bytes(b"\xff"), "is not valid JSON"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), "is not valid JSON"),
        (lambda f: (f / "config.json").write_text(" " * 2**24 + "{}"), "bytes, more than 16,777,216"),
        (lambda f: (f / "config.json").write_text('{"schema": 2}'), "does not describe a model"),
        (lambda f: (f / "config.json").write_text('{"schema": 2, "backbone": [1]}'), "does not describe a model"),
        (lambda f: _change(f, name="gpt"), "There is no backbone 'gpt'"),
        (lambda f: _change(f, name=["trc2"]), "There is no backbone"),
        (lambda f: _change(f, d_model="wide"), "d_model='wide' is not valid"),
        (lambda f: _change(f, dropout=float("nan")), "does not describe a model: dropout=nan"),
        (lambda f: (f / "model.safetensors").unlink(), r"There is no .*model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "cannot be read"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 1000), "cannot be read"),
        (lambda f: _replace(f, torch.int64), "does not fit its config: .* floats belongs"),
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


def small(name: str) -> BackboneConfig:
    if name == "trc2":
        return tiny_config()
    changes = {"num_residual_blocks": 2} if name == "blk_attn_res" else {}
    return tiny_baseline(MODELS[name], replay=True, **changes)


def sizes(config: BackboneConfig) -> list[str]:
    """The settings that tensors or lists of modules grow with."""
    return [
        name
        for name in type(config).model_fields
        if name.startswith(("d_", "memory_slots", "memory_key", "num_", "replay_long", "replay_recent", "replay_chunk"))
        or name.endswith(("vocab_size", "_dim", "_rank", "_positions", "_width", "rank"))
    ]


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"hf"}))
def test_sizes_are_compared_with_the_file_before_anything_is_built(tmp_path: Path, name: str) -> None:
    config = small(name)
    save_model(build_model(config), tmp_path)
    pristine = (tmp_path / "config.json").read_text()
    load_model(tmp_path)  # torch imports its compiler for the first one, which is not what is measured
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for field in sizes(config):
        for size in (100_000, 2**31 - 8):
            (tmp_path / "config.json").write_text(pristine)
            _change(tmp_path, **{field: size})
            begun = time.monotonic()
            if (name, field) == ("trc2", "max_positions") and size == 100_000:
                assert load_model(tmp_path).config.max_positions == size  # small tables of angles are in no file
            else:
                with pytest.raises(UserError) as caught:
                    load_model(tmp_path)
                assert "\n" not in str(caught.value)
            assert time.monotonic() - begun < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


def test_a_model_without_weights_still_has_a_config(tmp_path: Path) -> None:
    save_model(build_model(small("moe")), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert load_config(tmp_path) == small("moe")


def test_a_model_may_be_reached_by_a_link(tmp_path: Path) -> None:
    save_model(CortexNet(tiny_config()), tmp_path / "model")
    (tmp_path / "link").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "link" / name).symlink_to(tmp_path / "model" / name)
    assert load_model(tmp_path / "link").config == tiny_config()


def test_weights_that_are_no_numbers_are_loaded_as_they_are(tmp_path: Path) -> None:
    net = CortexNet(tiny_config())
    with torch.no_grad():
        net.cortex.embedding.weight[0, 0] = float("nan")
    save_model(net, tmp_path)
    assert load_model(tmp_path).cortex.embedding.weight[0, 0].isnan()


def test_what_no_machine_can_hold_is_told_before_it_is_built() -> None:
    check_memory(load_recipe("paper_d1024_l6").model)
    for overrides in (["model.d_model=2000000000"], ["model.d_model=2147483640"], ["model.vocab_size=2147483647"],
                      ["model.memory_slots=2147483647"], ["model.replay_long_chunks=2147483647"]):  # fmt: skip
        begun = time.monotonic()
        with pytest.raises(UserError, match="but this machine has"):
            check_memory(load_recipe("demo", overrides).model)
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("place", ["pipe", "/dev/zero"])
def test_settings_that_are_a_pipe_or_a_device_are_refused_instead_of_waited_for(place: str, tmp_path: Path) -> None:
    if place == "pipe":
        os.mkfifo(tmp_path / "config.json")
    else:
        (tmp_path / "config.json").symlink_to(place)
    with pytest.raises(UserError):
        load_model(tmp_path)
