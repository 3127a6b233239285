"""The documentation as a site: every page has its place, and what is made from the code is whole."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import trc2
from docs.reference_pages import commands_page, names_page, settings_page
from tests.browser import find_browser, open_browser
from trc2.cli import COMMANDS, app
from trc2.config import MODELS, recipe_names, strategy_names
from trc2.config.explain import explain
from trc2.config.strategy import strategy_class

ROOT = Path(__file__).parents[1]


def places(nav: Any) -> Iterator[str]:
    for entry in nav.values() if isinstance(nav, dict) else nav:
        yield from [entry] if isinstance(entry, str) else places(entry)


def test_every_page_has_a_place_in_the_navigation() -> None:
    named = list(places(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(named) == len(set(named))
    assert set(named) == written


def test_search_from_disk_needs_no_network() -> None:
    """Without a script of ours the plugin `offline` fetches one, and search fails where there is no network."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert "offline" in site["plugins"]
    (script,) = site["extra"]["polyfills"]
    assert "iframe-worker" in script
    assert (ROOT / "docs" / script).is_file()


def test_every_setting_is_on_the_page_of_settings() -> None:
    page = settings_page()
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \| (.*) \| (.*) \|$", page, flags=re.MULTILINE)
    shown = {path for path, *_ in rows}
    tasks = re.compile(r"^stream\.tasks\.\w+\.")
    for recipe in recipe_names():
        found = {tasks.sub("stream.tasks.NAME.", setting.path) for setting in explain(recipe)}
        assert found - {"stream"} <= shown  # null in recipes of a model alone
    for name, section in MODELS.items():
        assert {f"model.{field}" for field in section.model_fields} <= shown, name
    for name in strategy_names():
        assert {f"strategy.{field}" for field in strategy_class(name).model_fields} <= shown, name
    assert [row for row in rows if not all(cell.strip() for cell in row)] == []


def test_every_command_and_option_is_on_the_page_of_commands() -> None:
    page = commands_page()
    assert all(f"## trc2 {name}" in page for name in COMMANDS)
    train = typer.main.get_group(app).commands["train"]
    assert all(option in page for parameter in train.params for option in parameter.opts if option.startswith("--"))


def test_every_public_name_is_on_the_page_of_names() -> None:
    shown = re.findall(r"^::: trc2\.(?:api\.)?(\w+)$", names_page("# Python\n"), flags=re.MULTILINE)
    assert sorted(shown) == sorted(name for name in trc2.__all__ if not name.startswith("__"))
    assert shown[:2] == ["train", "Run"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs trc2[docs]")
def test_the_site_is_built_without_a_warning_and_asks_nobody(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    fetched = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(https?:)?//[^"]*"')
    assert [(page.name, fetched.findall(page.read_text())) for page in pages if fetched.search(page.read_text())] == []
    names = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert all(re.search(rf'id="trc2\.(api\.)?{name}"', names) for name in trc2.__all__ if not name.startswith("__"))
    assert "documents" in names[names.index('id="trc2.train"') : names.index('id="trc2.Run"')]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs trc2[docs]")
def test_the_site_fits_1280_pixels_and_can_be_searched_from_disk(site: Path, tmp_path: Path) -> None:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    too_wide = """[...document.querySelectorAll('.md-typeset__scrollwrap')]
        .filter(table => table.scrollWidth > table.clientWidth + 1).map(table => table.innerText.slice(0, 50))"""
    with open_browser(program, tmp_path) as page:
        for path in sorted(site.rglob("*.html")):
            page.open(path.as_uri(), 1280)
            assert page.run(too_wide) == [], path.name
            assert page.run("document.documentElement.scrollWidth") <= 1280, path.name
        page.open((site / "index.html").as_uri(), 1280)
        page.run("document.querySelector('[data-md-component=search-query]').focus()")
        page.type("forgetting")
        assert page.wait("document.querySelectorAll('.md-search-result__item').length") > 3
