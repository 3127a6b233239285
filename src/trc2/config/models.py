"""Every backbone by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from trc2.config.backbone import BackboneConfig
from trc2.config.model import TRC2Config
from trc2.config.pretrained import HFConfig
from trc2.config.section import SettingError, check_names, shown
from trc2.errors import did_you_mean
from trc2.system.plugins import find, installed_names, load_settings

# Our backbones, in the order of tables. Each is a file of `trc2.backbones` with its settings inside, except for the two
# whose settings are large.
NAMES = (
    "trc2", "transformer", "moe", "mamba", "deepseek_moe", "blk_attn_res", "falcon", "lora_drs", "hf",
)  # fmt: skip


class _Backbones(Mapping[str, type[BackboneConfig]]):
    """The settings class of each of our backbones. Its file, and with it torch, is imported when it is asked for."""

    def __getitem__(self, name: str) -> type[BackboneConfig]:
        if name not in NAMES:
            raise KeyError(name)
        if name == "trc2":
            return TRC2Config
        if name == "hf":
            return HFConfig
        settings: type[BackboneConfig] = import_module(f"trc2.backbones.{name}").Config
        return settings

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


MODELS = _Backbones()


def model_config(values: Mapping[str, Any]) -> BackboneConfig:
    """The settings of the backbone called `name`, which is TRC² by default."""
    check_names(values)
    return _class_of(values.get("name", "trc2"))(**values)


def switch_backbone(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Settings of another backbone of the same width, depth and vocabulary. What else it has is at its default."""
    target = _class_of(name).model_fields
    if values.get("name", "trc2") == name:  # the one it is already
        return {**values, "name": name}
    if name == "hf":  # its folder says what it is. How it replays is not the folder's to say
        kept = {field: value for field, value in values.items() if field in target and field.startswith("replay")}
        if {"replay_coefficient", "replay_batch_size"} & kept.keys():
            kept.setdefault("replay_share", None)
        return {**kept, "name": name}
    kept = {field: value for field, value in values.items() if field in (*BackboneConfig.model_fields, "num_heads")}
    depth = values.get("num_columns", values.get("num_layers"))
    if depth is not None:
        kept["num_columns" if "num_columns" in target else "num_layers"] = depth
    return {**kept, "name": name}


def backbone_class(name: object) -> type[BackboneConfig] | None:
    """The settings class of the backbone of this name, ours or an installed plug-in's. None if there is none."""
    if not isinstance(name, str) or name in MODELS:
        return MODELS.get(name) if isinstance(name, str) else None
    plugin = find("backbone", name)
    return None if plugin is None else load_settings(plugin, "Config", BackboneConfig, ["build", "cost"])


def _class_of(name: object) -> type[BackboneConfig]:
    settings = backbone_class(name)
    if settings is None:
        choices = [*MODELS, *installed_names("backbone")]
        raise SettingError(f"There is no backbone {shown(name)}: {did_you_mean(str(name), choices)}", "name")
    return settings
