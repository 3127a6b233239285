"""`trc2 recipes`: what there is to train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trc2.cli.app import AsJson, app, out, print_json
from trc2.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table


@app.command()
def recipes(
    word: Annotated[str, typer.Argument(help="Only recipes with this in their name.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the recipes that come with the package, and plug-ins. `trc2 config NAME` shows all settings of one."""
    from trc2.config import recipe_descriptions
    from trc2.system.plugins import GROUPS, installed

    found = {name: purpose for name, purpose in recipe_descriptions().items() if word in name}
    if as_json:
        print_json(found)
        return
    plugins = [plugin for kind in GROUPS for plugin in installed(kind) if word in plugin.name]
    if not found and not plugins:
        raise UserError(f"There is no recipe with '{word}' in its name: `trc2 recipes` lists all.")
    if found:
        out.print(_table("recipe", "what it is for", found))
    if plugins:
        named = {f"{plugin.kind} {plugin.name}": plugin.owner for plugin in plugins}
        out.print(_table("plug-in", "whose it is", named))


def _table(first: str, second: str, rows: dict[str, str]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    table.add_column(second)
    for row in rows.items():
        table.add_row(*row)
    return table
