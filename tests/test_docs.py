"""Names, links, numbers, prose and pictures of the documents are right."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import typer
import yaml

import trc2
from docs import pictures, prose
from trc2.cli import app
from trc2.report.report import run_rows
from trc2.report.runs import read_runs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SOURCE, TESTS = ROOT / "src" / "trc2", ROOT / "tests"
TOP = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md")
DOCUMENTS = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in TOP)]
LINKED = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "results/README.md", "results/lab/paper/README.md")
EXAMPLES = re.compile(r"mine|NAME|mytask|KEY")  # what a reader is asked to write


@cache
def names_in(path: Path) -> set[str]:
    """Functions, classes and assigned names of a module, methods as Class.method."""
    return _names(ast.parse(path.read_text(encoding="utf-8")).body, "")


def _names(body: list[ast.stmt], prefix: str) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            names |= _names(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
    return names


def find(path: str) -> Path | None:
    return next((base / path for base in (SOURCE, TESTS, ROOT, ROOT / "src") if (base / path).is_file()), None)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_functions_and_tests_named_in_a_document_exist(document: Path) -> None:
    missing = []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
        for word in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|yaml|json|md)(?:::?[\w.]+)?)`", line):
            path, _, name = word.partition(":")
            if EXAMPLES.search(word) or path.startswith(("runs/demo", "DATA/")):
                continue
            found = find(path)
            if found is None or (name and name.lstrip(":") not in names_in(found)):
                missing.append(f"{document.name}:{number} {word}")
    assert missing == []


LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def anchors_in(path: Path) -> set[str]:
    """What `#…` may name: headings as GitHub and the site write them, and explicit anchors."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("document", [*DOCUMENTS, *(ROOT / name for name in LINKED)], ids=lambda path: path.name)
def test_links_of_a_document_lead_to_files_and_headings_in_the_repository(document: Path) -> None:
    dead = []
    for link in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if link.startswith(("http:", "https:")):
            continue
        if target.name == "contributing.md" and anchor:  # the site shows CONTRIBUTING.md there
            target = ROOT / "CONTRIBUTING.md"
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_in(target)):
            dead.append(link)
    assert dead == []


def test_the_prose_check_counts_sentences_outside_code_and_tables() -> None:
    page = "# A title; with one\n\nShort text. It is `a; b` here.\n\n| cell; one |\n\n```bash\na; b; c\n```\n"
    found = prose.read(page)
    assert len(found.sentences) == 2
    assert found.per_hundred(";") == 0
    assert prose.problems("docs/x.md", page) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("One thing; another thing.", "semicolons"),
        ("There is no way, and nobody knows.", "is no, nobody"),
        (" ".join(["word"] * 46) + ".", "46 words"),
        ("Every arm is drawn.", "configuration"),
        ("What was never learned cannot be forgotten.", "instead of 'What'"),
        ("| a cell | the lesioned model |", "ablation"),
    ],
)
def test_the_prose_check_finds_what_it_is_for(text: str, named: str) -> None:
    assert any(named in problem for problem in prose.problems("docs/x.md", text))


@pytest.mark.parametrize("theme", pictures.THEMES.values(), ids=pictures.THEMES)
@pytest.mark.parametrize("picture", pictures.PICTURES.values(), ids=pictures.PICTURES)
def test_pictures_show_the_committed_runs(picture: pictures.Picture, theme: str) -> None:
    drawn = (ROOT / "docs" / f"{picture.file}{theme}.png").read_bytes()
    assert picture.fingerprint().encode() in drawn, "draw them again: python -m docs.pictures"


def test_every_picture_is_drawn_from_runs_or_a_screenshot() -> None:
    names = [*(picture.file for picture in pictures.PICTURES.values()), *pictures.SCREENSHOTS]
    expected = {f"{name}{theme}.png" for name in names for theme in pictures.THEMES.values()}
    assert {path.name for path in (ROOT / "docs").rglob("*.png")} == expected


def test_the_hash_of_a_picture_changes_with_its_numbers() -> None:
    picture = pictures.PICTURES["forgetting"]
    steps, (first, *others) = pictures.curve("plain", "prose")
    changed = replace(picture, data=lambda: [(steps, [first + 0.001, *others])])
    same = replace(picture, data=lambda: [(steps, [first, *others])])
    assert changed.fingerprint() != same.fingerprint()


def test_every_picture_of_a_page_has_an_alternative_text() -> None:
    bare = re.compile(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"]+\")")
    assert [document.name for document in DOCUMENTS if bare.search(document.read_text(encoding="utf-8"))] == []


def test_every_picture_of_a_page_is_named_once_and_has_a_dark_version() -> None:
    """The site chooses between both. GitHub would show two pictures if a page named both."""
    named = {
        (document.parent / path).resolve()
        for document in DOCUMENTS
        for path in re.findall(r"!\[[^\]]*\]\(([^)]+\.png[^)]*)\)", document.read_text(encoding="utf-8"))
    }
    assert len(named) >= 8
    assert [path.name for path in named if not path.with_name(f"{path.stem}-dark{path.suffix}").is_file()] == []


def test_the_page_of_installation_names_every_extra() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = re.findall(r"^([\w-]+) = \[", section, flags=re.MULTILINE)
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*`) \|", page, flags=re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", " ".join(rows))) == set(extras)


@pytest.mark.parametrize("page", prose.pages())
def test_every_page_passes_the_prose_check(page: str) -> None:
    assert prose.problems(page, (ROOT / page).read_text(encoding="utf-8")) == []


def test_changelog_and_citation_name_the_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}$", changes, flags=re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert released[0] == citation["version"] == trc2.__version__
    assert "## [Unreleased]" in changes


def test_no_page_installs_the_package_from_an_index() -> None:
    """It is not on one: `pip install trc2` would install whatever has that name there."""
    wrong = re.compile(r"pip install [^\n]*'?\btrc2\b\[?")
    texts = {path: path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *SOURCE.rglob("*.py")]}
    assert [path.name for path, text in texts.items() if wrong.search(text)] == []


def test_the_list_of_results_has_the_number_of_kills_of_the_committed_proof() -> None:
    proof = json.loads((ROOT / "results" / "soak" / "resume.json").read_text())
    assert f"`resume.json`: {proof['kills']:,} SIGKILLs" in (ROOT / "results" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "name"), [("serve.md", "serve-openapi.json"), ("serve.md", "serve-kills.json")])
def test_pages_quote_the_figures_of_the_committed_proofs(page: str, name: str) -> None:
    figures = json.loads((ROOT / "results" / "soak" / name).read_text())
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert f"results/soak/{name}" in text
    if name == "serve-openapi.json":
        assert figures["requests"] > 10_000
        assert not [status for status in figures["statuses"] if int(status) >= 500]
        quoted = [figures["requests"], *figures["statuses"].values()]
    else:
        met_a_job = figures["kills"]["job"]
        quoted = [figures["acknowledged_files"], figures["answers"], figures["jobs"], met_a_job]
        quoted.append(sum(figures["kills"].values()) - met_a_job)
    assert [number for number in quoted if f" {number:,} " not in text] == []


OPERATIONS = (ROOT / "docs" / "serve-operations.md").read_text(encoding="utf-8")


def block_of(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", OPERATIONS, re.DOTALL)
    return str(block)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_unit_without_a_warning(tmp_path: Path) -> None:
    unit = tmp_path / "trc2.service"
    content, count = re.subn(r"(?m)^ExecStart=\S+", f"ExecStart={shutil.which('true')}", block_of("ini"))
    assert count == 1
    unit.write_text(content)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    said = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]  # not of other units
    assert (done.returncode, said) == (0, [])


def test_unit_and_container_start_the_server_with_options_that_it_has() -> None:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    words = {name: json.loads(value) for name, value in re.findall(r"(?m)^(ENTRYPOINT|CMD) (.*)$", block_of("docker"))}
    (unit,) = re.findall(r"(?m)^ExecStart=(.*)$", block_of("ini"))
    for command in ([*words["ENTRYPOINT"], *words["CMD"]], unit.split()):
        assert (Path(command[0]).name, command[1]) == ("trc2", "serve")
        serve.make_context("serve", command[2:])
    (extras,) = re.findall(r"'\.\[([\w,-]+)\]'", block_of("docker"))
    assert set(extras.split(",")) <= set(re.findall(r"(?m)^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text()))


@pytest.mark.parametrize("decision", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda path: path.name)
def test_a_decision_has_a_status_and_a_date(decision: Path) -> None:
    assert re.search(r"^Status: .*\d{4}-\d{2}-\d{2}", decision.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})


def test_the_readme_stays_short_and_narrow() -> None:
    assert len(README.split()) <= 1100
    assert max(map(len, README.splitlines())) <= 120


def test_the_numbers_of_the_demo_are_those_of_the_committed_runs() -> None:
    """Perplexities and forgetting of the demo's table, read back from the metrics logs in results/demo."""

    def numbers(text: str) -> list[float]:
        return [float(number.replace(",", "")) for number in re.findall(r"[\d.,]+", text)]

    page = (ROOT / "docs" / "continual-learning.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`: [^|]*\|(.*)\|$", page, flags=re.MULTILINE))
    assert list(rows) == ["plain", "plain_replay", "trc2", "large_share"]
    table = run_rows(read_runs([ROOT / "results" / "demo" / name for name in rows]))
    for name, cells in rows.items():
        *perplexities, _, aufc, _ = table.loc[name]  # perplexities, forgetting, AUFC, speed
        assert numbers(cells) == numbers("|".join([*perplexities, aufc]))
