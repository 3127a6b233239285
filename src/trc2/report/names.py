"""What a run is called in tables and pictures, and how it looks: decided by its settings, never by its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trc2.config import RunConfig, TRC2Config
from trc2.config.pretrained import HFConfig

# Okabe–Ito, told apart also without full colour vision; its yellow is hard to see on white, so brown stands for it.
FAMILIES: dict[str, tuple[str, str, str]] = {  # backbone: how it is written, its colour, its marker
    "trc2": ("TRC²", "#0072B2", "o"),
    "transformer": ("Transformer", "#D55E00", "s"),
    "moe": ("MoE", "#009E73", "^"),
    "mamba": ("Mamba", "#CC79A7", "D"),
    "deepseek_moe": ("DeepSeekMoE", "#E69F00", "v"),
    "blk_attn_res": ("BlkAttnRes", "#56B4E9", "P"),
    "falcon": ("FALCON", "#7F3F00", "X"),
    "lora_drs": ("LoRA-DRS", "#000000", "<"),
}
OTHER = ("#777777", ">")  # a backbone from elsewhere
PARTS = ("thalamus", "memory", "replay")


@dataclass(frozen=True)
class Family:
    """A backbone as it is written and drawn, the same everywhere."""

    name: str
    title: str
    colour: str
    marker: str


def family_of(config: RunConfig) -> Family:
    name = config.model.name
    title, colour, marker = FAMILIES.get(name, (name, *OTHER))
    if isinstance(config.model, HFConfig):
        title = str(config.model.architecture.get("model_type", title))
    return Family(name, title, colour, marker)


def replays(config: RunConfig) -> bool:
    """Whether the run trains on replayed chunks."""
    return config.model.replay and config.control.mode != "off"


def lesions(config: RunConfig) -> tuple[str, ...]:
    """The parts that a TRC² lacks; none for any other backbone."""
    if not isinstance(config.model, TRC2Config):
        return ()
    present = {"thalamus": config.model.thalamus, "memory": config.model.memory, "replay": replays(config)}
    return tuple(part for part in PARTS if not present[part])


def title_of(config: RunConfig) -> str:
    """In words: the backbone, what it lacks or has besides, and how it meets the tasks if not one after another.

    A TRC² without any of its three parts is the plain twin; only the twin with replay is named by what it has.
    """
    family, stream = family_of(config), config.stream
    missing = lesions(config)
    if missing == PARTS:
        words = f"{family.title} plain"
    elif missing == PARTS[:2]:
        words = f"{family.title} plain + {_replay_words(config)}"
    elif missing:
        words = f"{family.title} − {' − '.join(missing)}"
        words += f" ({_replay_words(config)})" if "replay" not in missing and not _is_papers(config) else ""
    elif isinstance(config.model, TRC2Config):
        words = family.title if _is_papers(config) else f"{family.title} ({_replay_words(config)})"
    else:
        words = f"{family.title} + {_replay_words(config)}" if replays(config) else family.title
    if config.strategy.name != "none":
        words += f" + {_strategy_words(config.strategy.name)}"
    if config.train.branches:  # a rate that is held, and annealed on branches
        words += f", {config.train.schedule}"
    if stream is not None and stream.mode == "joint":
        words += ", joint"
    if stream is not None and stream.only is not None:
        words += f", {' and '.join(stream.only)} only"
    return words


def _is_papers(config: RunConfig) -> bool:
    """Whether it replays as the paper does, which goes without saying for a TRC²."""
    return _replay_words(config) == "controlled replay"


def _replay_words(config: RunConfig) -> str:
    """How much is replayed: by the paper's weight, or as a share of the tokens, where a controller begins with it."""
    is_steered, share = config.control.mode == "closed_loop", config.model.replay_share
    if share is None:
        words = "controlled replay" if is_steered else "constant replay"
    else:
        words = f"{'steered ' if is_steered else ''}{100 * share:.0f} % replay"
    words += " of the last steps" if config.model.replay_long_fraction == 0 else ""
    words += f" kept by {config.model.replay_keep}" if config.model.replay_keep in ("loss", "surprise") else ""
    words = f"balanced {words}" if config.model.replay_keep == "balanced" else words
    return f"{words} + jump" if config.control.jump_gain else words


def _strategy_words(name: str) -> str:
    return {"ewc": "EWC", "l2": "L2", "agem": "A-GEM"}.get(name, name)


def size_of(config: RunConfig) -> str:
    """Width and depth, as the paper writes them."""
    return f"d{config.model.d_model}-L{config.model.depth}"


def order_of(config: RunConfig) -> tuple[str, ...]:
    """The trained tasks in the order they are learnt."""
    assert config.stream is not None
    return tuple(task.name for task in config.stream.trained)


def learning_settings(config: RunConfig) -> dict[str, Any]:
    """Every setting by its dotted path, without those in which repetitions of one experiment may differ.

    These are seed and order, and where things lie. Replay draws of their own count as an offset from the seed.
    """
    values = config.model_dump(mode="json")
    seed = values["train"].pop("seed")
    values.pop("output")
    if values["model"].get("replay_seed") is not None:
        values["model"]["replay_seed"] -= seed
    if values["stream"] is not None:
        for name in ("order", "data_root", "cache"):
            values["stream"].pop(name, None)
    return dict(_flat(values))


def _flat(values: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            found += _flat(value, f"{path}{name}.")
        else:
            found.append((f"{path}{name}", value))
    return found
