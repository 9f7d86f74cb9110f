"""Prepare a command's parameters for Typer: groups become flags, with panels and completion.

:func:`in_groups` is the entry point. A shell completes names of mechanisms, phases, quantities,
claims and the like, which :data:`NAMES` lists by flag.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import wraps
from importlib import import_module
from itertools import chain
from typing import Any, get_type_hints

from typer import Context
from typer.core import TyperCommand
from typer.models import OptionInfo

from attnprof.cli.options import Format, declared
from attnprof.workload import DTYPES, PHASES, SCOPES

#: The panels of every command's help, in their order, with the flags of each.
PANELS = {
    "What": "attention model source norms where grid suite baseline against table figure claim "
    "case metric kind quantity convention scope verdict everything verify measure self_test "
    "symbolic full ceilings distill quick mfu counting models of_model view compare logits over",
    "Sizes": "seq target_seq lengths built_for d_model heads d batch kv_heads kv_seq width "
    "value_dim at span every",
    "Conditions": "phase causal dtype cache_dtype block_size chunk utilization uncapped device on "
    "kernel optimizer swap settings",
    "Ranks": "ranks bandwidth tensor_parallel pipeline expert_parallel context_parallel "
    "data_parallel sequence_parallel",
    "Training": "train recompute shard gradient_dtype",
    "Your own modules": "args inputs config",
    "Reading the formula": "meaning up_to growing",
    "Measuring": "samples min_time max_time spread seconds seeds seed threads wait_policy kept "
    "contended memory check predict_only journal longest_call compiled calibration isolate "
    "in_process limit memory_limit try_all processes counts error workers scheduler time formula",
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
    def run(**values: Any) -> Any:
        group_values = {
            name: group(**{field: values.pop(field) for field in names})
            for name, (group, names) in groups.items()
        }
        return function(**values, **group_values)

    run.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined] # as inspect reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in plain}
    return run


def _help_position(parameter: inspect.Parameter) -> int:
    """Set a parameter's panel and completion; return the panel's position in help."""
    info = declared(parameter.annotation, parameter.default)
    info.autocompletion = completing(parameter.name)
    if not isinstance(info, OptionInfo):
        return -1
    info.rich_help_panel = panel = _PANEL_OF.get(parameter.name, OUTPUT)
    return [*PANELS, OUTPUT].index(panel)


#: Second names of flags, which help does not show.
ALIASES = {"--calibration": "--file"}


class Command(TyperCommand):
    """A command whose ``--help`` stands in the panel of outputs, not in one of its own."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the ``--help`` flag, in the last panel."""
        option: Any = super().get_help_option(ctx)
        option.rich_help_panel = OUTPUT
        return option

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser, which also takes a flag's second name (``ALIASES``)."""
        parser: Any = super().make_parser(ctx)
        for parameter in self.get_params(ctx):
            if aliases := [ALIASES[flag] for flag in parameter.opts if flag in ALIASES]:
                parser.add_option(obj=parameter, opts=aliases, dest=parameter.name)
        return parser


_Names = tuple[str, ...] | str
#: The names that a flag takes, or a mapping of them by command (else ""). A ``module:NAMES`` is
#: imported when a shell asks for it.
NAMES: dict[str, _Names | dict[str, _Names]] = {
    "phase": {"": ("forward", "prefill", *PHASES[1:]), "derive": PHASES},
    "dtype": DTYPES, "scope": SCOPES, "size": ("page", "column"), "fmt": tuple(Format),
    "device": ("auto", "cpu", "cuda"), "causal": ("no", "yes", "both"),
    "norms": ("sphere", "spread"), "convention": ("flops", "operations"),
    "over": {"": ("flops", "time", "memory"), "crossover": "crossovers.axis:SIZES"},
    "kind": {
        "cost": "closed_form.cost_records:KINDS", "compare": ("formula",),
        "crossover": "crossovers.sides:ALL_KINDS", "heads": "closed_form.heads:KINDS",
        "heatmap": "closed_form.heatmap:KINDS", "verify-formula": "verify.own_formulas:KINDS",
        "plot": "render.plots.results:KINDS",
    },
    "quantity": {
        "cost": "closed_form.cost_records:QUANTITIES", "heads": "closed_form.heads:QUANTITIES",
        "compare": "closed_form.cost_records:POSSIBLE", "crossover": "cli.crossover:METRIC_OF",
        "derive": "trace.events:QUANTITIES", "heatmap": "closed_form.quantities:QUANTITIES",
        "verify-formula": "trace.events:QUANTITIES",
    },
    "metric": {
        "crossover": "crossovers.sides:ALL_METRICS",
        "history": ("time", "flops", "bytes_moved", "peak_bytes", "parameters"),
    },
    "up_to": ("exact", "leading", "order"), "rule": "gate.rules:RULES",
    "inconclusive": ("retry", "pass", "fail"), "stored_times": ("advise", "fail"),
    "verdict": "papers.checks:VERDICTS", "documents": "papers.documents:DOCUMENTS",
}  # fmt: skip
#: Parameters that name mechanisms.
MECHANISMS = ("attention", "target", "mechanism_a", "mechanism_b", "mechanisms", "pair")


def completing(parameter: str) -> Callable[..., list[str]] | None:
    """Return the function that completes a parameter's text for Typer; None for free text."""
    if parameter not in (*NAMES, *MECHANISMS, "settings", "claim", "table", "figure"):
        return None

    def complete(ctx: Context, incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        chosen = {name.strip() for name in before.split(",")}
        names = (name for name in _possible_names(parameter, ctx) if name not in chosen)
        return [before + comma + name for name in names if name.startswith(begun)]

    return complete


def _possible_names(parameter: str, ctx: Context) -> Iterable[str]:
    """Return all names that a parameter of a command takes."""
    from attnprof import registry

    if parameter in MECHANISMS:
        return [*registry.names(), *(point.name for point, why in registry.plugins() if not why)]
    if parameter == "settings":  # of the mechanisms asked for, or of all
        from attnprof.cli.program import names_in

        typed = {*names_in(map(ctx.params.get, MECHANISMS))} & {*registry.names()}
        mechanisms = map(registry.get, typed or registry.names())
        return sorted({f"{name}=" for each in mechanisms for name in each.parameter_names()})
    if parameter in ("claim", "table", "figure"):
        from attnprof.papers import documents as papers

        typed = {*ctx.args, *(ctx.params.get("documents") or ())}
        documents = (x for x in papers.DOCUMENTS.values() if {x.number, x.folder} & typed)
        parts = (document.part(f"{parameter}S".upper()) for document in documents)
        return papers.claims() if parameter == "claim" else chain.from_iterable(parts)
    names = NAMES[parameter]
    if isinstance(names, dict):
        names = names.get(ctx.info_name or "", names.get("", ()))
    if isinstance(names, str):
        module, _, constant = names.partition(":")
        names = getattr(import_module(f"attnprof.{module}"), constant)
    return names
