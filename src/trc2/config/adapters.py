"""The folder of LoRA adapters that peft saved: which model they belong to, and their settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trc2.errors import UserError, brief
from trc2.system.files import reading, refuse_special

SETTINGS_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
MAX_SETTINGS_BYTES = 1_000_000
# Settings that change what the adapters compute in ways that model.lora does not have.
PLAIN = {
    "use_rslora": False, "use_dora": False, "bias": "none", "modules_to_save": None, "rank_pattern": {},
    "alpha_pattern": {}, "layers_to_transform": None, "layer_replication": None, "exclude_modules": None,
    "target_parameters": None, "trainable_token_indices": None,
}  # fmt: skip


@dataclass(frozen=True)
class AdapterFolder:
    """Adapters, the folder of the model they belong to, and their settings as those of `model.lora`."""

    folder: Path
    base: Path
    lora: dict[str, Any]

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS_FILE


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds adapters without their model."""
    return (folder / SETTINGS_FILE).is_file() and not (folder / "config.json").is_file()


def read_adapter(folder: Path) -> AdapterFolder:
    """Read the settings of adapters. Raise a UserError unless they are plain LoRA and their model is a local folder."""
    settings = _read_settings(folder / SETTINGS_FILE)
    if settings.get("peft_type") != "LORA":
        raise UserError(
            f"{folder} holds adapters of the kind {brief(settings.get('peft_type'), 40)}: only LORA can be continued."
        )
    for name, plain in PLAIN.items():
        value = settings.get(name, plain)
        if value != plain and not (value is None or value == [] or value == {}):
            raise UserError(
                f"{folder / SETTINGS_FILE} has {name}={brief(value, 60)}, which model.lora does not have: merge the "
                "adapters with peft first, and give that folder."
            )
    targets = settings.get("target_modules")
    is_list = isinstance(targets, list) and all(isinstance(name, str) for name in targets)
    if not is_list and targets != "all-linear":
        raise UserError(
            f"{folder / SETTINGS_FILE} has target_modules={brief(targets, 60)}, which is not a list of names: "
            "merge the adapters with peft first, and give that folder."
        )
    lora = {
        "rank": settings.get("r"), "alpha": settings.get("lora_alpha"), "dropout": settings.get("lora_dropout", 0.0),
        "targets": sorted(targets) if isinstance(targets, list) else targets,
    }  # fmt: skip
    return AdapterFolder(folder, _find_base(folder, settings.get("base_model_name_or_path")), lora)


def with_base(folder: Path, base: Path) -> bytes:
    """The settings of adapters as JSON, with another place of their model."""
    settings = _read_settings(folder / SETTINGS_FILE)
    return json.dumps({**settings, "base_model_name_or_path": str(base.resolve())}, indent=2).encode()


def _read_settings(path: Path) -> dict[str, Any]:
    with reading(path):
        refuse_special(path)
        if path.stat().st_size > MAX_SETTINGS_BYTES:
            raise ValueError(f"it is larger than {MAX_SETTINGS_BYTES:,} bytes")
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise TypeError("it does not describe adapters")
    return settings


def _find_base(folder: Path, name: object) -> Path:
    """The model's folder: as it is named, or beside the adapters. It is not looked for on the hub."""
    if isinstance(name, str) and name:
        path = Path(name).expanduser()
        for candidate in (path, folder.resolve().parent / path.name):
            if (candidate / "config.json").is_file():
                return candidate.resolve()
    raise UserError(
        f"{folder} names {brief(name, 80)} as the model of its adapters, which is not a folder here: put it beside "
        "them, or name its folder by --base, or by model.pretrained with model.adapter."
    )
