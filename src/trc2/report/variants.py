"""Which runs are repetitions of one variant, and what a variant is called: decided by settings, never by folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trc2.config import RunConfig
from trc2.config.model import PARTS
from trc2.report.run import Run
from trc2.runs.identity import variant_settings

# Okabe–Ito colours can be told apart without full colour vision. Its yellow is hard to see on white, so we use brown.
FAMILIES: dict[str, tuple[str, str, str]] = {  # backbone: title, colour, marker
    "trc2": ("TRC²", "#0072B2", "o"),
    "transformer": ("Transformer", "#D55E00", "s"),
    "moe": ("MoE", "#009E73", "^"),
    "mamba": ("Mamba", "#CC79A7", "D"),
    "deepseek_moe": ("DeepSeekMoE", "#E69F00", "v"),
    "blk_attn_res": ("BlkAttnRes", "#56B4E9", "P"),
    "falcon": ("FALCON", "#7F3F00", "X"),
    "lora_drs": ("LoRA-DRS", "#000000", "<"),
}
OTHER = ("#777777", ">")  # colour and marker of any other backbone
STRATEGIES = {"ewc": "EWC", "l2": "L2", "agem": "A-GEM", "lwf": "LwF", "der": "DER++"}
REPLAY_SEED = "model.replay_seed"


def family_title(config: RunConfig) -> str:
    """The name of a backbone in tables and figures."""
    return FAMILIES.get(config.model.name, (config.model.family, *OTHER))[0]


def replays(config: RunConfig) -> bool:
    """Whether the run trains on replayed chunks."""
    return config.model.replay and config.control.mode != "off"


def missing_parts(config: RunConfig) -> tuple[str, ...]:
    """Which of its switches a backbone has off: thalamus, memory and replay of TRC². Other backbones have none."""
    present = {**config.model.model_dump(include=set(config.model.switches)), "replay": replays(config)}
    return tuple(part for part in config.model.switches if not present[part])


def size_of(config: RunConfig) -> str:
    """Width and depth, as the paper writes them."""
    return f"d{config.model.d_model}-L{config.model.depth}"


def is_reference(config: RunConfig) -> bool:
    """Joint training, or training on some of the tasks: a point of reference that does not compete."""
    assert config.stream is not None
    return config.stream.mode == "joint" or config.stream.only is not None


# ------------------------------------------------------------------------------------------------------ titles


def title_of(config: RunConfig) -> str:
    """The backbone, which parts it lacks or which protection it has, and how it trains if not task by task."""
    family, stream = family_title(config), config.stream
    missing, replay = missing_parts(config), _replay_words(config)
    if missing == PARTS:
        title = f"{family} backbone only"
    elif missing == PARTS[:2]:
        title = f"{family} backbone + {replay}"
    elif missing:
        title = f"{family} without {' and '.join(missing)}"
        title += f" ({replay})" if "replay" not in missing and replay != "controlled replay" else ""
    elif config.model.switches:
        title = family if replay == "controlled replay" else f"{family} ({replay})"
    else:
        title = f"{family} + {replay}" if replays(config) else family
    if config.strategy.name != "none":
        title += f" + {STRATEGIES.get(config.strategy.name, config.strategy.name)}"
    if config.train.branches:  # a constant rate, decayed on branches
        title += f", {config.train.schedule}"
    if stream is not None and stream.mode == "joint":
        title += ", joint"
    if stream is not None and stream.only is not None:
        title += f", {' and '.join(stream.only)} only"
    return title


def _replay_words(config: RunConfig) -> str:
    """How much is replayed: by the paper's coefficient, or as a share of the tokens."""
    is_controlled, share = config.control.mode == "closed_loop", config.model.replay_share
    if share is None:
        text = "controlled replay" if is_controlled else "constant replay"
    else:
        text = f"{'controlled ' if is_controlled else ''}{100 * share:.0f} % replay"
    text += " of the last steps" if config.model.replay_long_fraction == 0 else ""
    text += f" kept by {config.model.replay_keep}" if config.model.replay_keep in ("loss", "surprise") else ""
    text = f"balanced {text}" if config.model.replay_keep == "balanced" else text
    return f"{text} + jump" if config.control.jump_gain else text


SHORT = {  # settings that variants often differ in
    "model.replay_coefficient": "weight",
    "model.replay_batch_size": "chunks",
    "model.replay_long_fraction": "long fraction",
}


def _redundant(settings: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Settings without effect beside a replay share, and store sizes that hold equally many tokens."""
    paths = {"model.replay_coefficient", "model.replay_batch_size"} if settings.get("model.replay_share") else set()
    for store in ("model.replay_long_chunks", "model.replay_recent_chunks"):
        tokens = [values.get(store, 0) * values.get("model.replay_chunk_length", 0) for values in (settings, other)]
        if tokens[0] == tokens[1]:
            paths.add(store)
    return paths


# ------------------------------------------------------------------------------------------------------ groups


@dataclass(frozen=True)
class Group:
    """Runs whose settings are equal except for seed, order and random choice of replayed text."""

    settings: dict[str, Any]  # without the replay seed
    runs: list[Run]


def draw_of(config: RunConfig) -> int:
    """0, or for an A/A repeat the distance of its replay seed from its seed."""
    offset = variant_settings(config).get(REPLAY_SEED)
    return int(offset or 0)


def group_runs(runs: Iterable[Run]) -> list[Group]:
    groups: dict[str, Group] = {}
    for run in runs:
        settings = variant_settings(run.config)
        settings.pop(REPLAY_SEED, None)
        key = repr(sorted(settings.items(), key=lambda item: item[0]))
        groups.setdefault(key, Group(settings, [])).runs.append(run)
    # Of variants with the same title, the one with most runs has it alone, then the one with the usual settings.
    usual = _usual([group.settings for group in groups.values()])
    return sorted(groups.values(), key=lambda group: (-len(group.runs), _distance(group.settings, usual)))


def _usual(many: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """For each setting the value that most variants have."""
    paths = dict.fromkeys(path for settings in many for path in settings)
    return {path: Counter(repr(settings.get(path)) for settings in many).most_common(1)[0][0] for path in paths}


def _distance(settings: Mapping[str, Any], usual: Mapping[str, str]) -> int:
    return sum(repr(settings.get(path)) != value for path, value in usual.items())


def titles_of(groups: Sequence[Group], names: Mapping[int, Mapping[str, str]]) -> list[str]:
    """A different title for every group.

    `names`, by id of the run, are the names that a sweep's matrix gives along its axes. They are used if every group
    has some. Otherwise titles are made from settings, and groups with equal titles also name differing settings.
    """
    axes = [next((names[id(run)] for run in group.runs if id(run) in names), None) for group in groups]
    if axes and all(axes):
        named = [entry for entry in axes if entry]
        differing = [axis for axis in dict.fromkeys(axis for entry in named for axis in entry)
                     if len({entry.get(axis, "") for entry in named}) > 1]  # fmt: skip
        titles = [" · ".join(entry[axis] for axis in differing if entry.get(axis)) for entry in named]
        titles = [title or title_of(group.runs[0].config) for title, group in zip(titles, groups, strict=True)]
    else:
        titles = [title_of(group.runs[0].config) for group in groups]
    return _distinct(titles, groups)


def _distinct(titles: Sequence[str], groups: Sequence[Group]) -> list[str]:
    tasks = [group.runs[0].tasks for group in groups]
    shared = set(tasks[0]).intersection(*map(set, tasks)) if tasks else set()
    sizes: dict[str, set[str]] = {}
    for title, group in zip(titles, groups, strict=True):
        sizes.setdefault(title, set()).add(size_of(group.runs[0].config))
    distinct: list[str] = []
    firsts: dict[str, Mapping[str, Any]] = {}
    for title, group, own in zip(titles, groups, tasks, strict=True):
        name = f"{title} {size_of(group.runs[0].config)}" if len(sizes[title]) > 1 else title
        added = [task for task in own if task not in shared]
        name += f", then {' and '.join(added)}" if added else ""  # a continued run beside its parent
        if name not in firsts:
            firsts[name] = group.settings
            distinct.append(name)
            continue
        other, settings = firsts[name], group.settings
        skipped = _redundant(settings, other)
        paths = [path for path in settings | dict(other) if settings.get(path) != other.get(path)]
        named = {path: SHORT.get(path) or path.split(".", 1)[-1] for path in sorted(set(paths) - skipped)}
        differing = ", ".join(f"{word} {settings.get(path)}" for path, word in named.items())
        distinct.append(f"{name.removesuffix(')')}, {differing})" if name.endswith(")") else f"{name} ({differing})")
    return distinct
