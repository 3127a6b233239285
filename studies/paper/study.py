"""Everything that the study writes into one folder: the ledger, the tables, the figures and a page that shows them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from studies.paper.arithmetic import remarks
from studies.paper.claims import ROWS
from studies.paper.figures import FIGURES
from studies.paper.figures.drawing import COUNTS, Subject
from studies.paper.ledger import Ledger, Scope, build_ledger
from studies.paper.render import as_json, as_markdown, count_sentence
from studies.paper.roles import Roles
from studies.paper.tables import TABLES
from trc2.errors import UserError
from trc2.report.markdown import markdown
from trc2.report.runs import read_runs
from trc2.report.style import DPI, style
from trc2.report.tables import LeftOut
from trc2.system.files import reading, write_atomically


@dataclass
class Written:
    """The files, and what these runs could not fill, with the reason."""

    files: list[Path] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def read_counts(folders: Sequence[Path]) -> dict[str, dict[str, float]]:
    """Perplexities of counts of each task's own text, from counts.json beside the runs; empty if there is none."""
    path = next((found for folder in folders if (found := folder / "counts.json").is_file()), None)
    if path is None:
        return {}
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        return {task: {name: float(known["own"][name]) for name in COUNTS} for task, known in content["tasks"].items()}


def find_verify(folders: Sequence[Path]) -> Path | None:
    """verify.json in one of the folders, or in a folder `verify` beside them."""
    places = [place for folder in folders for place in (folder, folder.parent / "verify")]
    return next((found for place in places if (found := place / "verify.json").is_file()), None)


def ledger_of(folders: Sequence[Path]) -> Ledger:
    roles = Roles(read_runs(folders))
    return build_ledger(ROWS, roles, remarks(roles))


def write_study(folders: Sequence[Path], out: Path, dpi: int = DPI) -> Written:
    """claims.md, claims.json, tables/, figures/ and README.md."""
    begun, written = time.perf_counter(), Written()
    ledger = ledger_of(folders)
    subject = Subject(ledger.roles, read_counts(folders), find_verify(folders))
    for part in ("tables", "figures"):
        (out / part).mkdir(parents=True, exist_ok=True)
    _write(written, out / "claims.md", as_markdown(ledger, subject.counts))
    _write(written, out / "claims.json", as_json(ledger))
    lines = [
        "# The paper's tables and figures, from these runs",
        "",
        "The [ledger](claims.md) tests the paper's claims.",
        "",
    ]
    lines += [f"- {count_sentence(ledger, scope)}" for scope in Scope] + ["", "## Tables", ""]
    for title, make in TABLES:
        try:
            table = make(subject)
        except LeftOut as reason:
            written.left_out[title] = str(reason)
            continue
        paths = table.write(out / "tables")
        written.files += paths
        links = " · ".join(f"[{path.suffix[1:]}](tables/{path.name})" for path in paths)
        lines += [f"### {markdown(title)}", "", table.to_markdown(), "", f"{markdown(table.caption)} {links}", ""]
    lines += ["## Figures", ""]
    for title, draw in FIGURES:
        try:
            with style():
                picture = draw(subject)
                paths = picture.write(out / "figures", dpi)
        except LeftOut as reason:
            written.left_out[title] = str(reason)
            continue
        written.files += paths
        lines += [f"### {markdown(title)}", "", f"![{markdown(picture.title)}](figures/{paths[0].name})", ""]
        lines += [f"{markdown(picture.caption)} [svg](figures/{paths[1].name})", ""]
    if written.left_out:
        lines += ["## Missing", ""]
        lines += [f"- {markdown(title)}: {markdown(reason)}." for title, reason in written.left_out.items()] + [""]
    _write(written, out / "README.md", "\n".join(lines))
    written.seconds = time.perf_counter() - begun
    return written


def _write(written: Written, path: Path, text: str) -> None:
    write_atomically(path, text.encode())
    written.files.append(path)


def check_folders(names: Sequence[str]) -> list[Path]:
    folders = [Path(name) for name in names]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: give a folder of runs such as results/lab.")
    return folders
