"""`trc2 recipes`: what there is to train."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trc2.cli.app import AsJson, app, out, print_json
from trc2.errors import UserError
from trc2.system.console import table_of


@app.command()
def recipes(
    word: Annotated[str, typer.Argument(help="Only recipes with this in their name.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the recipes that come with the package, and plug-ins. `trc2 config NAME` shows all settings of one."""
    from trc2.config import recipe_descriptions
    from trc2.system.plugins import GROUPS, installed

    chosen = {name: purpose for name, purpose in recipe_descriptions().items() if word in name}
    if as_json:
        print_json(chosen)
        return
    plugins = [plugin for kind in GROUPS for plugin in installed(kind) if word in plugin.name]
    if not chosen and not plugins:
        raise UserError(f"There is no recipe with '{word}' in its name: `trc2 recipes` lists all.")
    style: dict[str, Any] = {"box": None, "padding": (0, 2, 0, 0), "align": "ll"}
    if chosen:
        out.print(table_of(("recipe", "what it is for"), chosen.items(), **style))
    if plugins:
        rows = [(f"{plugin.kind} {plugin.name}", plugin.owner) for plugin in plugins]
        out.print(table_of(("plug-in", "whose it is"), rows, **style))
