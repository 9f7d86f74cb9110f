"""The flags of commands, as the parser has them."""

import re

import typer

from attnprof.cli.parameters import in_groups
from attnprof.cli.program import command_function


def parser_of(name: str):
    """The command that parses, like click's."""
    app = typer.Typer(add_completion=False)
    app.command()(in_groups(command_function(name)))
    return typer.main.get_command(app)


def flags_of(*commands: str) -> set[str]:
    flags = set()
    for name in commands:
        for parameter in parser_of(name).params:
            flags |= {*parameter.opts, *parameter.secondary_opts}
    return flags


def flags_in(text: str) -> set[str]:
    """Return the long flags that a text names."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
