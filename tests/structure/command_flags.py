"""The flags of commands, as the parser has them."""

from __future__ import annotations

import typer

from attnprof.cli.app import command_function
from attnprof.cli.options import in_groups


def flags_of(*commands: str) -> set[str]:
    found = set()
    for name in commands:
        app = typer.Typer(add_completion=False)
        app.command()(in_groups(command_function(name)))
        for parameter in typer.main.get_command(app).params:
            found |= {*parameter.opts, *parameter.secondary_opts}
    return found
