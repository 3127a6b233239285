"""Pages that the site adds to docs/: reference pages made from the code, and pages from the top of the repository.

Each of these pages is also a short file in docs/, so that links to it work on GitHub too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from reference_pages import commands_page, names_page, settings_page  # noqa: E402


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the short file by the page that is made from the code."""
    match page.file.src_uri:
        case "reference/settings.md":
            return settings_page()
        case "reference/commands.md":
            return commands_page()
        case "reference/api.md":
            return names_page(markdown)
        case "contributing.md":
            return _moved("CONTRIBUTING.md")
        case "changelog.md":
            return _moved("CHANGELOG.md")
    return markdown


def _moved(name: str) -> str:
    """A page from the top of the repository, with its links as seen from docs/."""
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
