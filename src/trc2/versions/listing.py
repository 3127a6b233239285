"""All runs and versions below a folder: parents, scores, verdicts and sizes, as rows and as a small tree."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trc2.continuing.acceptance import read_verdict
from trc2.errors import UserError, brief
from trc2.report.run import read_run
from trc2.runs.folder import RunFolder
from trc2.system.files import finite, refuse_root
from trc2.versions.entry import Version
from trc2.versions.registry import Versions, is_versions

SCHEMA = 1
MAX_DEPTH = 6


@dataclass(frozen=True)
class Listed:
    """A run or a version. `state` is accepted, version, refused, judged, finished, unfinished or damaged.

    `scores` are the newest perplexities by task, `rise` the largest rise that the acceptance check found.
    """

    name: str
    kind: str
    state: str
    parent: str | None
    tasks: tuple[str, ...]
    scores: dict[str, float | None]
    rise: float | None
    bytes: int
    time: str = ""
    problem: str = ""

    def describe(self) -> dict[str, Any]:
        content: Any = finite(asdict(self))
        return dict(content)


def list_runs(folder: Path) -> list[Listed]:
    """Everything below a folder, versions in the order in which they were added, then runs by path."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: name one that holds runs or versions.")
    refuse_root(folder, "runs or versions")
    found: list[tuple[Path, Listed]] = []
    for home, names, _ in os.walk(folder):
        place = Path(home)
        depth = len(place.relative_to(folder).parts)
        if is_versions(place):
            found += _versions(Versions(place), folder)
            names[:] = [name for name in names if name == "attempts"]
        elif RunFolder(place).is_run:
            found.append((place.resolve(), _run(place, folder)))
            names[:] = []
        names[:] = sorted(name for name in names if not name.startswith(".") and depth < MAX_DEPTH)
    shown = {path: row.name for path, row in found}
    return [replace(row, parent=_parent(row.parent, shown, path)) for path, row in found]


def _parent(parent: str | None, shown: dict[Path, str], child: Path) -> str | None:
    """The parent by its name in the list if it is listed, else as the run names it."""
    if parent is None:
        return None
    for place in (Path(parent), child / parent):
        path = place.resolve()
        for folder in (path, path.parent):  # a version is listed by its folder, its run is one below
            if folder in shown:
                return shown[folder]
    return parent


def _name(path: Path, folder: Path) -> str:
    return path.name if path == folder else path.relative_to(folder).as_posix()


def _versions(versions: Versions, folder: Path) -> list[tuple[Path, Listed]]:
    accepted = versions.accepted_name()
    home = "" if versions.folder == folder else f"{_name(versions.folder, folder)}/"
    return [
        (version.folder.resolve(), _version(version, home, is_accepted=version.name == accepted))
        for version in versions.all()
    ]


def _version(version: Version, home: str, *, is_accepted: bool) -> Listed:
    parent = None if version.parent is None else str(version.folder.parent / version.parent)
    scores = {task: _number(values.get("kept")) for task, values in version.scores.items()}
    tasks = (version.verdict or {}).get("tasks", {})
    rises = [_number(task["rise"]) for task in tasks.values() if task["measure"] == "perplexity"]
    state = "accepted" if is_accepted else f"pruned ({version.removed})" if version.removed else "version"
    state = "damaged" if version.problem else state
    worst = max((rise for rise in rises if rise is not None), default=None)
    return Listed(
        f"{home}{version.name}", "version", state, parent, version.tasks, scores, worst, version.size, version.time,
        problem=brief(version.problem) if version.problem else "",
    )  # fmt: skip


def _run(path: Path, folder: Path) -> Listed:
    name, size = _name(path, folder), sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    try:
        run, files = read_run(path), RunFolder(path)
        lineage, verdict = files.lineage(), read_verdict(files)
        scores = {task: kept for task, (_, _, kept) in run.task_scores().items()} if run.tables else {}
        state = "finished" if run.is_finished else "unfinished"
        if verdict is not None and (lineage is None or lineage.has_limit):
            state = "judged" if verdict.passed else "refused"
        rise = verdict.worst if verdict is not None and verdict.tasks else None
        tasks = run.order if lineage is None else lineage.tasks
        parent = None if lineage is None else lineage.relative or lineage.parent
    except (UserError, KeyError) as problem:
        return Listed(name, "run", "damaged", None, (), {}, None, size, problem=brief(problem))
    return Listed(name, "run", state, parent, tuple(tasks), scores, rise, size)


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


# ------------------------------------------------------------------------------------------------------ the picture


def draw_tree(rows: list[Listed]) -> bytes:
    """A PNG: every run and version on a line of its own, joined with its parent, refused ones crossed out."""
    from trc2.system.plot_style import Figure, ink, label, palette, style

    children: dict[str | None, list[Listed]] = {}
    names = {row.name for row in rows}
    for row in rows:
        children.setdefault(row.parent if row.parent in names else None, []).append(row)
    ordered: list[tuple[int, Listed]] = []
    waiting = [(0, row) for row in reversed(children.get(None, []))]
    while waiting:
        depth, row = waiting.pop()
        ordered.append((depth, row))
        below = children.get(row.name, [])
        # An only child stays below its parent, so that a long line of versions does not move to the right.
        waiting += [(depth + (number > 0), child) for number, child in enumerate(below)][::-1]
    places = {row.name: (depth, number) for number, (depth, row) in enumerate(ordered)}
    accepted = sum(row.kind == "version" for row in rows)
    refused = sum(row.state == "refused" for row in rows)
    with style():
        title = f"{len(rows)} runs and versions: {accepted} versions, {refused} refused"
        figure = Figure("runs", title, height=max(1.2, 0.24 * len(rows) + 0.5))
        axes, colours = figure.panels[0], palette()
        for row in rows:
            x, y = places[row.name]
            if row.parent in places:
                from_x, from_y = places[row.parent]
                axes.plot([from_x, from_x, x], [from_y, y, y], color=ink("pale"), linewidth=1.2, zorder=1)
            is_refused = row.state in ("refused", "damaged")
            colour = colours[1] if is_refused else colours[0] if row.kind == "version" else ink("grey")
            filled = {"facecolors": colour if row.state == "accepted" or is_refused else ink("ground")}
            kind = {"marker": "x", "color": colour} if is_refused else {"marker": "o", "edgecolors": colour, **filled}
            axes.scatter([x], [y], s=42, zorder=2, **kind)
            rise = "" if row.rise is None else f", worst old text {row.rise:+.1%}"
            text = f"{row.name}  {'+'.join(row.tasks)}  {row.state}{rise}"
            weight = "bold" if row.state == "accepted" else "normal"
            axes.annotate(
                label(text, 90), (x, y), xytext=(9, 0), textcoords="offset points", va="center", fontsize=8.5,
                fontweight=weight, annotation_clip=False,
            )  # fmt: skip
        widest = max((depth for depth, _ in places.values()), default=0)
        axes.set_xlim(-0.3, widest + 7)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_axis_off()
        return figure.drawing.png()
