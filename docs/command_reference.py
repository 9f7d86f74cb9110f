"""Writes the reference of all commands, from the command line's own parser, for the site."""

import re
from inspect import cleandoc
from typing import Any

import typer

from attnprof.cli.parameters import in_groups
from attnprof.cli.program import SECTIONS, command_function
from attnprof.record.escapes import markdown_code, markdown_text
from attnprof.render.formats import markdown_table


def page() -> str:
    """The page: a heading a command, its help, a table of its flags."""
    parts = [
        "# Commands\n",
        "Made from the command line; `attnprof COMMAND --help` shows the same.\n",
    ]
    for panel, commands in SECTIONS.items():
        parts += [f"## {panel}\n", *(_command(name) for name in commands)]
    return "\n".join(parts)


def _command(name: str) -> str:
    function = command_function(name)
    app = typer.Typer(add_completion=False)
    app.command()(in_groups(function))
    text, _, examples = cleandoc(function.__doc__ or "").partition("Examples:\n")
    typed = re.sub(r"^  ", "", examples.rstrip(), flags=re.MULTILINE)
    rows = [_flag(parameter) for parameter in typer.main.get_command(app).params]
    return (
        f"### attnprof {name}\n\n{markdown_text_of(text)}\n\n```console\n{typed}\n```\n\n"
        f"{markdown_table(('flag', 'value', 'default', 'what'), [row for row in rows if row])}"
    )


def markdown_text_of(text: str) -> str:
    """Paragraphs as Markdown."""
    return "\n\n".join(markdown_text(part) for part in text.strip().split("\n\n"))


def _flag(parameter: Any) -> list[str]:
    if "--help" in parameter.opts:
        return []
    named = [*parameter.opts, *parameter.secondary_opts]
    flag = parameter.param_type_name == "option"
    shown = " ".join(map(markdown_code, named)) if flag else ""
    value = "" if getattr(parameter, "is_flag", False) else str(parameter.metavar or "")
    usual = parameter.default
    plain = isinstance(usual, (int, float, str)) and not isinstance(usual, bool) and usual != ""
    default = markdown_code(str(getattr(usual, "value", usual))) if plain else ""
    return [
        shown,
        markdown_code(value) if value else "",
        default,
        markdown_text(parameter.help or ""),
    ]
