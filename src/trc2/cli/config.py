"""`trc2 config`: every setting, explained."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from trc2.cli.app import AsJson, Overrides, app, complete_recipe, out, print_json


@app.command()
def config(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name or file, or a run folder.", autocompletion=complete_recipe)
    ],
    overrides: Overrides = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are not at their default.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show every setting of a recipe: its value, its default, its meaning, and which layer set it."""
    from trc2.config.explain import DEFAULT, explain

    settings = [s for s in explain(recipe, overrides or []) if not changed or s.value != s.default]
    if as_json:
        print_json([asdict(setting) for setting in settings])
        return
    width = max((len(setting.path) for setting in settings), default=0)
    for setting in settings:
        source = DEFAULT if setting.origin == DEFAULT else f"{setting.origin}; default {_written(setting.default)}"
        line = f"{setting.path:{width}} = {_written(setting.value):12} [{source}] {setting.meaning}"
        out.print(line, style=None if setting.origin == DEFAULT else "bold", soft_wrap=True)


def _written(value: Any) -> str:
    """As an override would write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
