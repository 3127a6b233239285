"""What the site has beside the files in docs/: reference pages made from the code, and pages that live further up."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from reference_pages import commands_page, names_page, settings_page  # noqa: E402


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written nowhere in docs/."""
    pages = {
        "reference/settings.md": settings_page(),
        "reference/commands.md": commands_page(),
        "contributing.md": _moved("CONTRIBUTING.md"),
        "changelog.md": _moved("CHANGELOG.md"),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """The page of public names says of itself where they go."""
    return names_page(markdown) if getattr(page, "file").src_uri == "reference/api.md" else markdown  # noqa: B009


def _moved(name: str) -> str:
    """A page from the top of the repository, with its links as seen from docs/."""
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
