"""Prepare a command's parameters for Typer: groups become flags, with panels and completion."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

from typer.core import TyperCommand
from typer.models import OptionInfo, ParameterInfo

from attnprof.cli.completion import completing

#: The panels of every command's help, in their order, with the flags of each.
PANELS = {
    "What": "attention model source norms where grid suite baseline against table figure claim "
    "case metric kind quantity convention scope verdict everything verify measure self_test "
    "symbolic full ceilings distill quick",
    "Sizes": "seq target_seq built_for d_model heads d batch kv_heads kv_seq at span",
    "Conditions": "phase causal dtype device kernel optimizer swap settings",
    "Your own modules": "args inputs config",
    "Reading the formula": "meaning up_to growing",
    "Measuring": "samples min_time max_time spread seconds seeds seed threads kept contended "
    "memory check predict_only journal longest_call compiled calibration isolate in_process limit "
    "memory_limit try_all processes counts error workers scheduler time formula",
    "Judging": "rule inconclusive budget stored_times",
}
#: The panel of all other flags.
OUTPUT = "Output"
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}


def in_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with its groups' fields as parameters: arguments, then by panel.

    A group's defaults are those of the parameter's default, if it has one.
    """
    plain: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, set[str]]] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        group: Any = parameter.annotation
        if not is_dataclass(group):
            plain.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(group, include_extras=True)
        groups[name] = group, {field.name for field in fields(group)}
        example = group if parameter.default is parameter.empty else parameter.default
        plain += [
            parameter.replace(name=name, annotation=hints[name], default=getattr(example, name))
            for name in (field.name for field in fields(group))
        ]
    plain.sort(key=_help_position)

    @wraps(function)
    def run(**given: Any) -> Any:
        made = {
            name: group(**{field: given.pop(field) for field in own})
            for name, (group, own) in groups.items()
        }
        return function(**given, **made)

    run.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined] # as inspect reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in plain}
    return run


def _help_position(parameter: inspect.Parameter) -> int:
    """Set a parameter's panel and completion; return the panel's position in help."""
    declared = (*getattr(parameter.annotation, "__metadata__", ()), parameter.default)
    info = next(item for item in declared if isinstance(item, ParameterInfo))
    info.autocompletion = completing(parameter.name)
    if not isinstance(info, OptionInfo):
        return -1
    info.rich_help_panel = _PANEL_OF.get(parameter.name, OUTPUT)
    return [*PANELS, OUTPUT].index(info.rich_help_panel)


#: Second names of flags, which help does not show.
ALIASES = {"--calibration": "--file"}


class Command(TyperCommand):
    """A command whose ``--help`` is a flag among its others, not in a panel of its own."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the ``--help`` flag, in the last panel."""
        option: Any = super().get_help_option(ctx)
        option.rich_help_panel = "Output"
        return option

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser, which also takes a flag's other names (``ALIASES``)."""
        parser: Any = super().make_parser(ctx)
        for parameter in self.get_params(ctx):
            others = [ALIASES[flag] for flag in parameter.opts if flag in ALIASES]
            if others:
                parser.add_option(obj=parameter, opts=others, dest=parameter.name)
        return parser
