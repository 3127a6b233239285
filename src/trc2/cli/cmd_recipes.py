"""`trc2 recipes`: what there is to train."""

from __future__ import annotations

from typing import Annotated

import typer

from trc2.cli.app import AsJson, app, out, print_json
from trc2.errors import UserError


@app.command()
def recipes(
    word: Annotated[str, typer.Argument(help="Only recipes with this in their name.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the recipes that come with the package. `trc2 config NAME` shows all settings of one."""
    from rich.table import Table

    from trc2.config import recipe_descriptions

    found = {name: purpose for name, purpose in recipe_descriptions().items() if word in name}
    if as_json:
        print_json(found)
        return
    if not found:
        raise UserError(f"There is no recipe with '{word}' in its name: `trc2 recipes` lists all.")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("recipe", no_wrap=True)
    table.add_column("what it is for")
    for name, purpose in found.items():
        table.add_row(name, purpose)
    out.print(table)
