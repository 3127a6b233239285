"""Pages that the site adds to docs/: reference pages made from the code, and pages from the top of the repository.

Each of these pages is also a short file in docs/, so that links to it work on GitHub too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from reference_pages import commands_page, names_page, settings_page  # noqa: E402


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page as the site shows it: made from the code where it is, and with dark pictures where there are some."""
    folder = Path(str(page.file.abs_src_path)).parent

    def in_both_themes(image: re.Match[str]) -> str:
        start, path = image.groups()
        dark = path.replace(".png", "-dark.png")
        return f"{start}({path}#only-light)\n{start}({dark}#only-dark)" if (folder / dark).is_file() else image[0]

    return re.sub(r"(!\[[^\]]*\])\(([\w/-]+\.png)\)", in_both_themes, _page(markdown, page))


def _page(markdown: str, page: Page) -> str:
    """The short file, or the page that is made from the code in its place."""
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
    """A page from the top of the repository, with its links as seen from docs/.

    The site does not hold the other files of the repository, so their links become plain text.
    """
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\(((?!https?:|#)[^)]+)\)", _in_the_site, text)


def _in_the_site(link: re.Match[str]) -> str:
    path = link[2].partition("#")[0]
    return link[0] if (ROOT / "docs" / path).is_file() else f"`{link[2]}`"
