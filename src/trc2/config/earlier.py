"""Settings of earlier versions, and two shorthands, in today's words: recipes, overrides and run folders stay good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trc2.config.model import TRC2Config
from trc2.config.models import backbone_class
from trc2.config.section import Section, SettingError
from trc2.errors import UserError, brief

# λ_0, B_0 and ρ_0 used to stand in two sections, `model` and `control`; the trainer used those of `control`.
CONTROL_WORDS = {
    "coefficient": "replay_coefficient",
    "batch_size": "replay_batch_size",
    "long_fraction": "replay_long_fraction",
}
# All strategies had their settings in one section.
STRATEGY_WORDS = {
    "ewc_strength": ("ewc", "strength"),
    "ewc_decay": ("ewc", "decay"),
    "fisher_sequences": ("ewc", "fisher_sequences"),
    "l2_strength": ("l2", "strength"),
    "agem_chunks": ("agem", "chunks"),
}


def in_todays_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Unchecked settings of a run, written for any version, under this version's names.

    - `control.coefficient`, `.batch_size`, `.long_fraction` become `model.replay_…`. They win where both are set:
      every earlier config.yaml sets both, and its run used those of `control`.
    - The bag `ewc_strength`, `l2_strength`, … becomes the fields of the strategy that is named; what belongs to others
      is dropped. An earlier word wins over today's.
    - `strategy=replay` is a shorthand of model.replay=true control.mode=fixed, and `replay_controlled` of the same with
      control.mode=closed_loop. Neither is a strategy: what remains is `none`.
    - `strategy=agem` on a model without replay needs its stores, filled but not replayed: model.replay=true
      control.mode=off.

    Another control.mode is refused. A value that is no section is left as it is, for its own check to refuse.
    """
    result = dict(values)
    for name in ("model", "control", "strategy"):
        if isinstance(result.get(name), dict | Section):
            result[name] = _as_dict(result[name])
    model, control, strategy = (result.get(name, {}) for name in ("model", "control", "strategy"))
    if isinstance(control, dict):
        moved = {CONTROL_WORDS[word]: control.pop(word) for word in [*control] if word in CONTROL_WORDS}
        if isinstance(model, dict):
            model.update(moved)
    if isinstance(strategy, dict):
        name = strategy.get("name", "none")
        for word in [word for word in strategy if word in STRATEGY_WORDS]:
            owner, field = STRATEGY_WORDS[word]
            value = strategy.pop(word)
            if owner == name:
                strategy[field] = value
        if isinstance(model, dict) and isinstance(control, dict):
            mode = _mode_meant_by(name, model)
            if mode is not None:
                if control.get("mode") not in (None, mode):
                    raise SettingError(
                        f"strategy={name} means control.mode={mode}, but control.mode={brief(control['mode'], 80)} is "
                        "set: leave one of them out."
                    )
                strategy["name"] = "agem" if name == "agem" else "none"
                result |= {"model": {**model, "replay": True}, "control": {**control, "mode": mode}}
    return result


def _mode_meant_by(strategy: Any, model: Mapping[str, Any]) -> str | None:
    """The control.mode that comes with a name, if replay does."""
    if strategy == "replay":
        return "fixed"
    if strategy == "replay_controlled":
        return "closed_loop"
    return "off" if strategy == "agem" and not _has_replay(model) else None


def _has_replay(model: Mapping[str, Any]) -> bool:
    """Whether settings of a model that nobody has checked yet ask for replay."""
    name = model.get("name", "trc2")
    try:
        config = backbone_class(name) or TRC2Config
    except UserError:
        config = TRC2Config  # the check of the model's settings will raise it again
    try:
        return TypeAdapter(bool).validate_python(model.get("replay", config.model_fields["replay"].default))
    except ValidationError:
        return False  # the check of the model's settings will raise a better error


def _as_dict(section: Any) -> dict[str, Any]:
    return section.model_dump() if isinstance(section, Section) else dict(section)


# ------------------------------------------------------------------------------------------------ laid over each other


def forget_earlier_words(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Remove from `below` the earlier names of what `above` sets under today's, so that the last setting counts."""
    moved = {("control", word): ("model", field) for word, field in CONTROL_WORDS.items()}
    moved |= {("strategy", word): ("strategy", field) for word, (_, field) in STRATEGY_WORDS.items() if word != field}
    for (section, word), (home, field) in moved.items():
        old, new = below.get(section), above.get(home)
        if isinstance(old, dict) and isinstance(new, dict) and field in new:
            old.pop(word, None)


def switch_strategy(values: Mapping[str, Any], name: object) -> dict[str, Any]:
    """Settings of another strategy, at their defaults; earlier names are kept, since each names its own strategy."""
    if values.get("name", name) == name:
        return {**values, "name": name}
    return {**{field: value for field, value in values.items() if field in STRATEGY_WORDS}, "name": name}
