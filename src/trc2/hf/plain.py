"""A Hugging Face model as it came: its own architecture, tokenizer and number format, with what it has learnt since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trc2.backbones.hf import ADAPTER, HFTrunk, lora_config, silence
from trc2.backbones.shell import Backbone
from trc2.config.pretrained import CONFIG_FILE, HFConfig
from trc2.errors import UserError
from trc2.files import write_atomically

ADAPTER_WEIGHTS, ADAPTER_SETTINGS = "adapter_model.safetensors", "adapter_config.json"


def save_plain(net: Backbone, folder: Path, papers: Path, *, merge: bool = True) -> None:
    """Write weights in the first folder's number format, beside copies of its tokenizer and settings (`papers`)."""
    config, trunk = net.config, net.trunk
    assert isinstance(config, HFConfig)
    assert isinstance(trunk, HFTrunk)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(papers.iterdir()) if papers.is_dir() else ():
        if merge or path.name not in (CONFIG_FILE, "generation_config.json"):
            write_atomically(folder / path.name, path.read_bytes())
    dtype = _saved_dtype(config)
    if merge:
        merge_adapters(trunk.lm)
        with silence():
            trunk.lm.to(dtype).save_pretrained(folder, max_shard_size="5GB")
        # As it came, but for the number format: the model was built with the dropout of its training.
        known = {**config.architecture, "dtype": str(dtype).removeprefix("torch.")}
        known.pop("torch_dtype", None)
        write_atomically(folder / CONFIG_FILE, json.dumps(known, indent=2).encode())
        return
    if config.lora is None:
        raise UserError("The run trained the model itself, it has no adapters: leave --adapter out.")
    _save_adapters(config, trunk.lm, folder)


def _saved_dtype(config: HFConfig) -> torch.dtype:
    name = config.architecture.get("dtype") or config.architecture.get("torch_dtype") or config.dtype
    found = getattr(torch, str(name), None)
    return found if isinstance(found, torch.dtype) else torch.float32


@torch.no_grad()
def merge_adapters(lm: nn.Module) -> None:
    """W ← W + B·A·α/r in every adapted module, which then is what it was before."""
    for name, module in list(lm.named_modules()):
        if hasattr(module, "merge") and hasattr(module, "get_base_layer"):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(lm.get_submodule(parent), child, module.get_base_layer())


def _save_adapters(config: HFConfig, lm: Any, folder: Path) -> None:
    import safetensors.torch
    from peft import LoraConfig, get_peft_model_state_dict

    settings = lora_config(config, lm, LoraConfig)
    lm.peft_config = {ADAPTER: settings}
    tensors = {
        name: tensor.contiguous() for name, tensor in get_peft_model_state_dict(lm, adapter_name=ADAPTER).items()
    }
    prefixed = {name if name.startswith("base_model.model.") else f"base_model.model.{name}": tensor
                for name, tensor in tensors.items()}  # fmt: skip
    write_atomically(folder / ADAPTER_WEIGHTS, safetensors.torch.save(prefixed, metadata={"format": "pt"}))
    settings.inference_mode = True
    settings.save_pretrained(folder)
