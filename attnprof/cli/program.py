"""Find the command that was typed, declare it to Typer, and run it on its arguments (:func:`run`).

A command's file is imported only when it is typed, so that ``--help`` and completion stay fast. A
command that runs a user's code does so in a process that may die.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer

import attnprof
from attnprof.errors import CannotRunError, RequestError
from attnprof.processes.progress import announce

#: Runs a function and returns its exit code; its failure becomes a message on stderr.
Guard = Callable[[Callable[[], Any]], int]
#: Commands by the panels that help shows them in.
SECTIONS = {
    "Closed forms": {
        "list": "List the mechanisms, how they grow, and their papers.",
        "cost": "Show what a mechanism costs: FLOPs, bytes and memory.",
        "compare": "Put mechanisms side by side and mark the cheapest.",
        "crossover": "Find the length from which one mechanism is cheaper.",
        "heads": "Show the cost over the number of heads, and the best number.",
        "heatmap": "Draw the ratio of two costs over length and model width.",
        "explore": "Write a page on which sizes are dragged and curves cross.",
    },
    "Your code": {
        "derive": "Derive closed forms from your own torch code.",
        "verify-formula": "Check a published formula, or a table of them, against code.",
        "model": "Show what a whole model costs, by its configuration.",
        "fit": "Say whether a model fits a device, and how much of it.",
    },
    "On the clock": {
        "profile": "Time and measure real modules beside their closed forms.",
        "sweep": "Measure many mechanisms and sizes into one file.",
        "plot": "Draw figures from the results of sweep and profile.",
        "calibrate": "Measure this device: its ceilings, and single operations.",
        "predict": "Predict time and memory without running anything.",
        "recommend": "Rank all mechanisms by predicted time and memory.",
        "tradeoff": "Compare approximations with softmax attention.",
        "doctor": "Show the environment, the devices, and which counters work.",
    },
    "CI": {
        "baseline": "Record what a suite of cases counts and takes, for check.",
        "check": "Fail when FLOPs, memory or time got worse.",
        "history": "Find the runs at which saved results reached another level.",
    },
    "Papers": {"reproduce": "Recompute every claim, table and figure of five papers."},
}
COMMANDS = {name: summary for section in SECTIONS.values() for name, summary in section.items()}
#: Commands that are defined in another command's file.
FILES = {"compare": "cost", "heads": "cost", "predict": "profile", "recommend": "profile",
         "baseline": "check", "history": "check"}  # fmt: skip
HELP = """What attention costs: FLOPs, memory and time, in closed form and on the clock.

Numbers from formulas need no torch and no GPU; attnprof COMMAND --help shows examples.

\bExamples:
  attnprof compare -a standard,sdpa,linear --seq 1024,65536
  attnprof crossover standard linear --d 64
  attnprof derive my.py:MyAttention
"""
#: Environment variables that a shell's completion sets: the request, and the words so far.
COMPLETING, TYPED = "_ATTNPROF_COMPLETE", ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
#: Commands that start processes, and are supervised so that none is left behind.
ALWAYS_FOREIGN = ("sweep", "baseline", "check")
#: Parameters that may name user code to run.
TARGETS = ("attention", "target", "mechanism_a", "mechanism_b", "mechanisms", "pair", "table")


def run(arguments: list[str], guarded: Guard, *, is_main: bool) -> Any:
    """Parse the arguments and run the command; an error of the parser is one line on stderr."""
    if is_main and COMPLETING not in os.environ:
        announce()
    for argument in arguments:
        if re.search("[\0\ud800-\udc7f\udd00-\udfff]", argument):
            raise RequestError(f"{argument}: an argument cannot hold NUL or half a character")
    words = arguments
    if COMPLETING in os.environ:
        words = " ".join(os.environ.get(name, "") for name in TYPED).split()[1:]
    typed = next((word for word in words if not word.startswith("-")), "")
    program = program_for(typed, guarded, is_main=is_main)
    _check_folder(typed)
    try:
        return program(arguments, prog_name="attnprof", standalone_mode=False)
    except SystemExit as ended:  # completion was answered or installed, or stdout is closed
        if isinstance(ended.__context__, BrokenPipeError):
            raise
        return ended.code
    except Exception as error:
        message_of = getattr(error, "format_message", None)  # the parser's errors have it
        message = " ".join(message_of().split()) if message_of else ""
        if message_of and not message:  # no arguments: help was shown
            return RequestError.exit_code
        if not message:
            raise
        command = f"attnprof {typed}" if typed in COMMANDS else "attnprof"
        explained = _with_hint(message, error, arguments, typed, command)
        raise RequestError(f"{explained} (see: {command} --help)") from error


def _with_hint(message: str, error: Any, arguments: list[str], typed: str, command: str) -> str:
    """Return the message of the parser's error, followed by what to type."""
    if fmt := _format_meant(error):
        return f"No such option: --{fmt}; type --format {fmt}"
    hint = _number_hint(error) or _extra_hint(error, arguments, command)
    return f"{message}{hint or _missing_hint(message, typed)}"


def _check_folder(typed: str) -> None:
    """Refuse a command in a folder that was removed, where torch's libraries end the program."""
    try:
        _ = typed in COMMANDS and Path.cwd()
    except OSError as error:
        message = f"the working folder cannot be used ({error.strerror}): cd to one that exists"
        raise CannotRunError(message) from error


def _number_hint(error: Any) -> str:
    """Return a hint for a flag whose value is no number; "" for other parser errors."""
    match = re.search(r"valid (float|number|integer|int)\b", error.format_message())
    flag = next(iter(getattr(getattr(error, "param", None), "opts", ())), "")
    if not match or not flag.startswith("--"):
        return ""
    example = error.param.default if isinstance(error.param.default, int | float) else 1
    kind = "number" if match[1] in ("float", "number") else "whole number"
    return f" Give a {kind}, like {flag} {example:g}"


def _format_meant(error: Any) -> str:
    """Return the format whose name was typed as an option, like ``--json``; else ""."""
    from attnprof.cli.options import Format

    name = str(getattr(error, "option_name", "")).removeprefix("--")
    has_formats = name in {*Format} and "fmt" in {item.name for item in error.ctx.command.params}
    return name if has_formats else ""


def _extra_hint(error: Any, arguments: list[str], command: str) -> str:
    """Return a hint for values that follow an option's first one without commas; else "".

    ``model --compare A B C`` is ``model A --compare B,C``, as a model is an argument, too. Names
    that no option precedes belong to ``--attention``, if the command has it.
    """
    match = re.search(r"unexpected extra argument\S* \((.+)\)", error.format_message())
    extra = match[1].split() if match else []
    if not extra or extra[-1] not in arguments:
        return ""
    end = len(arguments) - arguments[::-1].index(extra[-1])
    start = max(i for i, word in enumerate(arguments[:end]) if word.startswith("-") or not i)
    (flag, *values), params = arguments[start:end], error.ctx.command.params
    positional = [item.name for item in params if item.param_type_name == "argument"]
    option = next((item for item in params if flag in item.opts), None)
    if option is None or option.is_flag or values[0][:1].isdigit() != extra[0][:1].isdigit():
        flags = {name for item in params for name in item.opts} - {*arguments}
        by_name = "--attention" in flags and not positional
        return f"; type the names as --attention {','.join(extra)}" if by_name else ""
    if {*map(str, map(error.ctx.params.get, positional))} & {*values[1:]}:
        return f"; type {command} {values[0]} {flag} {','.join(values[1:])}"
    return f"; several values are joined by commas: type {flag} {','.join(values)}"


def _missing_hint(message: str, typed: str) -> str:
    """Return an example for a missing argument, or all commands for an unknown one; else ""."""
    if message.startswith("No such command") and "Did you mean" not in message:
        return f" Possible: {', '.join(COMMANDS)}"
    if typed not in COMMANDS or not message.startswith("Missing argument"):
        return ""
    examples = cleandoc(command_function(typed).__doc__ or "").partition("Examples:\n")[2]
    return f" Type it as in {examples.strip().splitlines()[0]}" if examples else ""


def program_for(typed: str, guarded: Guard, *, is_main: bool) -> typer.Typer:
    """Return the command line: the typed command in full, the rest by name and summary."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=typed not in COMMANDS or COMPLETING in os.environ,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=HELP)(_globals)
    for panel, commands in SECTIONS.items():
        for name, summary in commands.items():
            declare = app.command(name, help=summary, rich_help_panel=panel)
            if name == typed:
                _add_command(app, name, guarded, is_main=is_main)
            else:
                declare(lambda: None)
    return app


def _add_command(app: typer.Typer, name: str, guarded: Guard, *, is_main: bool) -> None:
    """Add a command in full; it ends with an exit code before Typer sees errors."""
    from attnprof.cli.parameters import Command, in_groups
    from attnprof.record.recognition import one_command

    function = in_groups(command_function(name))
    shown = "\n\n".join(  # for any width: paragraphs in one line, but for the examples
        f"\b{text}" if text.startswith("Examples:") else " ".join(text.split())
        for text in cleandoc(function.__doc__ or "").replace("[", "\\[").split("\n\n")
    )

    @app.command(name, help=shown, cls=Command)
    @wraps(function)
    def run(**values: Any) -> None:
        work = partial(guarded, lambda: function(**values))
        with one_command(names_in(values.values()), command=name):
            if (subject := foreign_code(name, values) if is_main else None) is None:
                raise typer.Exit(work())
            from attnprof.processes.supervision import supervised

            raise typer.Exit(supervised(work, subject))


def _show_version(is_set: bool) -> None:
    if is_set:
        sys.stdout.write(f"attnprof {attnprof.__version__}\n")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
)


def _globals(
    version: Annotated[bool, _VERSION] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a bug.")] = False,
) -> None:
    """Declare the options before a command's name."""


def command_function(name: str) -> Callable[..., Any]:
    """Return a command's function, named like it: ``list_`` for ``list``."""
    identifier = name.replace("-", "_")
    members = vars(import_module(f"attnprof.cli.{FILES.get(name, identifier)}"))
    function: Callable[..., Any] = members.get(f"{identifier}_") or members[identifier]
    return function


def foreign_code(command: str, params: Mapping[str, Any]) -> str | None:
    """Return a name for the user's code that a command runs, for messages; None if it runs none.

    The name is as typed, ``my.py:A``, or else the command's.
    """
    names: list[str] = []
    if command != "reproduce":
        values = (params.get(parameter) for parameter in TARGETS)
        names = names_in(str(value) if isinstance(value, Path) else value for value in values)
    if command == "verify-formula" and params.get("table"):
        names += names_in([params["formula"]])  # the target, where a table has the formulas
    if code_names := [name for name in names if ":" in name]:
        return ", ".join(dict.fromkeys(code_names))
    if command in ALWAYS_FOREIGN:
        return f"attnprof {command}"
    from attnprof import registry

    return f"attnprof {command}" if set(names) - {"", *registry.names()} else None


def names_in(values: Iterable[Any]) -> list[str]:
    """Return the typed texts, lists split at commas; each may name a file of code."""
    listed = [value if isinstance(value, list) else [value] for value in values]
    texts = [text for entries in listed for text in entries if isinstance(text, str)]
    return [name.strip() for text in texts for name in text.split(",")]
