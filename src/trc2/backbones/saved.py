"""A model on disk: `config.json` and `model.safetensors`, written atomically and read without running code.

`AutoModelForCausalLM.from_pretrained` reads the same folder and `save_pretrained` writes it, see `trc2.hf`.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from trc2.backbones.registry import build_model, step_cost
from trc2.backbones.shell import Backbone
from trc2.config import BackboneConfig, model_config
from trc2.config.adapters import is_adapter
from trc2.config.pretrained import HFConfig, read_config_json
from trc2.errors import UserError, brief
from trc2.replay.stores import stored_bytes
from trc2.system.files import reading, write_atomically

SCHEMA = 2
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
MODEL_TYPE, ARCHITECTURE = "trc2", "TRC2ForCausalLM"
PREFIX = "net."  # the network inside its Hugging Face face
PLAIN_LENGTH = 1024
MAX_DERIVED_BYTES = 2**28  # of tables that follow from the config and are in no file, such as rotary angles


def save_model(net: Backbone, folder: Path, *, sequence_length: int | None = None) -> None:
    """Write weights, memory, replay stores and their settings. `sequence_length` is that of the training."""
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
    if sequence_length is not None:
        settings["sequence_length"] = sequence_length
    write_atomically(folder / CONFIG_FILE, json.dumps(settings, indent=2).encode())


def load_model(folder: Path) -> Backbone:
    """Rebuild a saved model. Raises UserError if the folder does not hold one.

    The shapes that config.json asks for are compared with the file before anything is built. The folder of any causal
    language model of transformers is opened too.
    """
    if is_plain(folder):
        return build_model(load_config(folder), torch.Generator())
    settings = _read_settings(folder / CONFIG_FILE)
    config = _backbone_config(settings, folder)
    tensors = _read_tensors(folder / WEIGHTS_FILE, settings.get("sha256"))
    _check_fit(config, tensors, folder)
    net = build_model(config)
    embedding = next(name for name in tensors if name.endswith(".embedding.weight"))
    net.to(tensors[embedding].dtype)
    net.load_state_dict(tensors)
    return net


def load_config(folder: Path) -> BackboneConfig:
    """The config of a saved model. Its weights are not read."""
    if is_plain(folder):
        return model_config({"name": "hf", "pretrained": str(folder), "replay": False})
    return _backbone_config(_read_settings(folder / CONFIG_FILE), folder)


def trained_length(folder: Path) -> int:
    """The length of the sequences that a saved model was trained on, or all its positions where this is not recorded.

    Models of transformers often have very many positions, so they are read in sequences of at most 1024.
    """
    if is_plain(folder):
        return min(load_config(folder).max_positions, PLAIN_LENGTH)
    limit, length = load_config(folder).max_positions, read_config_json(folder / CONFIG_FILE).get("sequence_length")
    return length if isinstance(length, int) and 1 <= length <= limit else limit


def is_plain(folder: Path) -> bool:
    """Whether a folder holds a model in the format of transformers instead of ours, or adapters of peft for one."""
    if is_adapter(folder):
        return True
    try:
        settings = read_config_json(folder / CONFIG_FILE)
    except UserError:
        return False
    return "schema" not in settings and settings.get("model_type") not in (None, MODEL_TYPE)


def is_saved_model(folder: Path) -> bool:
    """Whether a folder holds a saved model, or adapters of peft for one."""
    return (folder / CONFIG_FILE).is_file() or is_adapter(folder)


def check_memory(config: BackboneConfig) -> None:
    """Refuse a network that does not fit into the memory of this machine, before any of it is built."""
    if not hasattr(os, "sysconf"):
        return
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if _at_most_bytes(config) < available:
        return  # an outline would make torch import its compiler, which takes seconds
    try:
        net = outline(config.replace(replay=False))
        wanted = sum(tensor.nbytes for tensor in (*net.parameters(), *net.buffers())) + _replay_bytes(config)
    except RuntimeError:  # not even the number of bytes can be counted
        wanted = 2**63
    if wanted > available:
        raise UserError(
            f"The model takes {wanted / 1e9:,.1f} GB, but this machine has {available / 1e9:,.1f} GB: choose smaller "
            "sizes, such as model.d_model, model.vocab_size or the depth."
        )


def outline(config: BackboneConfig) -> Backbone:
    """The network with shapes only, without memory for its weights.

    Replay stores are allocated all the same. Leave them out with `config.replace(replay=False)`.
    """
    with torch.device("meta"):
        return build_model(config)


def _at_most_bytes(config: BackboneConfig) -> float:
    """A bound from formulas: two FLOPs per active weight and token, all experts as large as those a token selects.

    Weights of a folder were counted.
    """
    if isinstance(config, HFConfig):
        return 4.0 * config.num_parameters + _replay_bytes(config)
    flops = sum((cost.forward for cost in step_cost(config, 1, 1, with_replay=False).values()), 0.0)
    sizes = config.model_dump()
    slots = sizes.get("memory_slots", 0) * (config.d_model + sizes.get("memory_key_dim", 0))
    weights = flops / 2 * max(1, sizes.get("num_experts", 1)) + config.max_positions * config.d_model + slots
    return 4.0 * weights + _replay_bytes(config)


def _replay_bytes(config: BackboneConfig) -> int:
    return stored_bytes(config) if config.replay else 0


# ------------------------------------------------------------------------------------------------------ the two files


def _read_settings(path: Path) -> dict[str, Any]:
    settings = read_config_json(path)
    if settings.get("schema") != SCHEMA:
        schema = brief(repr(settings.get("schema")), 40)
        raise UserError(f"{path} has schema {schema}, this version reads {SCHEMA}: save it again.")
    if not isinstance(settings.get("backbone"), dict):
        raise UserError(f"{path} does not describe a model: it must hold 'schema' and 'backbone'.")
    return settings


def _backbone_config(settings: dict[str, Any], folder: Path) -> BackboneConfig:
    try:
        return model_config(settings["backbone"])
    except UserError as problem:
        raise UserError(f"{folder / CONFIG_FILE} does not describe a model: {problem}") from None


def _read_tensors(path: Path, sha256: object) -> dict[str, torch.Tensor]:
    """Every tensor by its name in the network."""
    if not path.is_file():
        raise UserError(f"There is no {path}: give a folder with a saved model.")
    with reading(path, "give a folder with a saved model"):
        weights = path.read_bytes()
        tensors = safetensors.torch.load(weights)
    if sha256 is not None and sha256 != hashlib.sha256(weights).hexdigest():
        raise UserError(f"{path} is not the file its config.json was saved with: use another copy.")
    return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}


def _check_fit(config: BackboneConfig, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Raise unless the file holds exactly the tensors of the network. Nothing large is built for this check."""
    path = folder / WEIGHTS_FILE
    size = sum(tensor.nbytes for tensor in tensors.values())
    if config.num_parts > len(tensors) or _replay_bytes(config) > size:
        raise UserError(
            f"{path} does not fit its config: its {len(tensors)} tensors of {size:,} bytes are fewer than the config "
            "asks for, so use the config saved with it."
        )
    try:
        net = outline(config)
    except RuntimeError as error:
        raise UserError(f"{path} does not fit its config ({brief(error)}): use the config saved with it.") from None
    expected = {name: _kind(tensor) for name, tensor in net.state_dict().items()}
    stored = {name: _kind(tensor) for name, tensor in tensors.items()}
    wrong = sorted(name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name))
    if wrong:
        name = brief(wrong[0], 80)
        raise UserError(
            f"{path} does not fit its config: {name} is {stored.get(wrong[0], 'missing')} where "
            f"{expected.get(wrong[0], 'nothing')} belongs ({len(wrong)} such tensors), so use the config saved with it."
        )
    derived = sum(buffer.nbytes for name, buffer in net.named_buffers() if name not in expected)
    if derived > MAX_DERIVED_BYTES:
        raise UserError(
            f"{folder / CONFIG_FILE} asks for tables of {derived / 1e9:,.1f} GB, which no file backs: use the config "
            f"saved with the model, or lower its max_positions of {config.max_positions}."
        )


def _kind(tensor: torch.Tensor) -> str:
    """Shape and kind of number. The same for every precision of the network."""
    return f"{tuple(tensor.shape)} {'floats' if tensor.is_floating_point() else str(tensor.dtype)[6:]}"
