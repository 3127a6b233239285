"""Every backbone by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trc2.config.backbone import BackboneConfig
from trc2.config.baselines import BASELINES
from trc2.config.model import TRC2Config
from trc2.config.section import SettingError, check_names, shown
from trc2.errors import did_you_mean

_CONFIGS: tuple[type[BackboneConfig], ...] = (TRC2Config, *BASELINES)
MODELS = {str(config.model_fields["name"].default): config for config in _CONFIGS}


def model_config(values: Mapping[str, Any]) -> BackboneConfig:
    """The settings of the backbone that `name` tells, TRC² by default."""
    check_names(values)
    return _class_of(values.get("name", "trc2"))(**values)


def switch_backbone(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Settings of another backbone of the same width, depth and vocabulary; what else it has is at its default."""
    target = _class_of(name).model_fields
    kept = {field: value for field, value in values.items() if field in (*BackboneConfig.model_fields, "num_heads")}
    depth = values.get("num_columns", values.get("num_layers"))
    if depth is not None:
        kept["num_columns" if "num_columns" in target else "num_layers"] = depth
    return {**kept, "name": name}


def _class_of(name: object) -> type[BackboneConfig]:
    if not isinstance(name, str) or name not in MODELS:
        raise SettingError(f"There is no backbone {shown(name)}: {did_you_mean(str(name), list(MODELS))}", "name")
    return MODELS[name]
