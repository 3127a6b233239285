"""A model on disk: `config.json` and `model.safetensors`, written atomically, opened without running anything.

The folder is also what `AutoModelForCausalLM.from_pretrained` reads and `save_pretrained` writes, see `trc2.hf`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from trc2.backbones.registry import build_model
from trc2.backbones.shell import Backbone
from trc2.config import BackboneConfig, model_config
from trc2.errors import UserError
from trc2.files import write_atomically

SCHEMA = 2
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
MODEL_TYPE, ARCHITECTURE = "trc2", "TRC2ForCausalLM"
PREFIX = "net."  # the network inside its Hugging Face face


def save_model(net: Backbone, folder: Path) -> None:
    """Write weights, memory, replay stores and their settings."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"{PREFIX}{name}": tensor.contiguous() for name, tensor in net.state_dict().items()}
    weights = safetensors.torch.save(tensors, metadata={"format": "pt"})
    write_atomically(folder / WEIGHTS_FILE, weights)
    settings = {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "dtype": str(net.get_input_embeddings().weight.dtype).removeprefix("torch."),
        "schema": SCHEMA,
        "sha256": hashlib.sha256(weights).hexdigest(),  # weights of one save never go with the settings of another
        "backbone": net.config.model_dump(),
    }
    write_atomically(folder / CONFIG_FILE, json.dumps(settings, indent=2).encode())


def load_model(folder: Path) -> Backbone:
    """Rebuild a saved model; a folder that does not hold one is told in a sentence."""
    settings = _read_settings(folder / CONFIG_FILE)
    net = build_model(model_config(settings["backbone"]))
    try:
        weights = (folder / WEIGHTS_FILE).read_bytes()
        tensors = safetensors.torch.load(weights)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{folder / WEIGHTS_FILE} cannot be read ({error}): give a folder with a saved model."
        ) from None
    if settings.get("sha256", hashlib.sha256(weights).hexdigest()) != hashlib.sha256(weights).hexdigest():
        raise UserError(f"{folder / WEIGHTS_FILE} is not the file its config.json was saved with: use another copy.")
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    _check_tensors(net, tensors, folder)
    embedding = next(name for name in tensors if name.endswith(".embedding.weight"))
    net.to(tensors[embedding].dtype)
    net.load_state_dict(tensors)
    return net


def load_config(folder: Path) -> BackboneConfig:
    """What a saved model is made of, without its weights."""
    return model_config(_read_settings(folder / CONFIG_FILE)["backbone"])


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"There is no {path}: give a folder with a saved model.") from None
    except ValueError:
        raise UserError(f"{path} is not valid JSON: the folder is damaged, use another copy.") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path} does not describe a model: it must hold 'schema' and 'backbone'.")
    if settings.get("schema") != SCHEMA:
        raise UserError(f"{path} has schema {settings.get('schema')!r}, this version reads {SCHEMA}: save it again.")
    if not isinstance(settings.get("backbone"), dict):
        raise UserError(f"{path} does not describe a model: it must hold 'schema' and 'backbone'.")
    return settings


def _check_tensors(net: Backbone, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise UserError(
            f"{folder / WEIGHTS_FILE} does not fit its config: {name} is {found.get(name, 'missing')} where "
            f"{expected.get(name, 'nothing')} belongs ({len(wrong)} such tensors); use the config saved with it."
        )
