"""What a shell completes: names of mechanisms, phases, quantities, claims and the like."""

from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import chain

from typer import Context

from attnprof.cli.options import Format
from attnprof.workload import DTYPES, PHASES, SCOPES

_EVERY = "every command"
#: Names a flag takes, by command; of another module by ``module:NAMES``, imported when asked for.
NAMES: dict[str, dict[str, tuple[str, ...] | str]] = {
    "phase": {_EVERY: ("forward", "prefill", *PHASES[1:]), "derive": PHASES},
    "dtype": {_EVERY: DTYPES},
    "scope": {_EVERY: SCOPES},
    "size": {_EVERY: ("page", "column")},
    "fmt": {_EVERY: tuple(Format), "reproduce": (*Format, "html")},
    "device": {_EVERY: ("auto", "cpu", "cuda")},
    "causal": {_EVERY: ("no", "yes", "both")},
    "norms": {_EVERY: ("sphere", "spread")},
    "over": {_EVERY: ("flops", "time", "memory"), "crossover": "crossovers.axis:SIZES"},
    "convention": {_EVERY: ("flops", "operations")},
    "kind": {
        "cost": "closed_form.cost_records:KINDS", "compare": ("formula",),
        "crossover": "crossovers.sides:ALL_KINDS", "heads": "closed_form.heads:KINDS",
        "heatmap": "closed_form.heatmap:KINDS", "verify-formula": "verify.own_formulas:KINDS",
        "plot": "render.plots.results:KINDS",
    },
    "quantity": {
        "cost": "closed_form.cost_records:QUANTITIES", "heads": "closed_form.heads:QUANTITIES",
        "compare": "closed_form.cost_records:CONTESTED", "crossover": "cli.crossover:METRIC_OF",
        "derive": "trace.events:QUANTITIES", "heatmap": "closed_form.quantities:QUANTITIES",
        "verify-formula": "trace.events:QUANTITIES",
    },
    "metric": {
        "crossover": "crossovers.sides:ALL_METRICS",
        "history": ("time", "flops", "bytes_moved", "peak_bytes", "parameters"),
    },
    "up_to": {_EVERY: ("exact", "leading", "order")},
    "rule": {_EVERY: "gate.rules:RULES"},
    "inconclusive": {_EVERY: ("retry", "pass", "fail")},
    "stored_times": {_EVERY: ("advise", "fail")},
    "verdict": {_EVERY: "papers.checks:VERDICTS"},
    "documents": {_EVERY: "papers.documents:DOCUMENTS"},
}  # fmt: skip
#: Parameters that name mechanisms.
MECHANISMS = ("attention", "target", "mechanism_a", "mechanism_b", "mechanisms", "pair")


def completing(parameter: str) -> Callable[..., list[str]] | None:
    """Return the function that completes a parameter's text for Typer; None for free text."""
    if parameter not in (*NAMES, *MECHANISMS, "settings", "claim", "table", "figure"):
        return None

    def complete(ctx: Context, incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        taken = {name.strip() for name in before.split(",")}
        found = (name for name in _possible_names(parameter, ctx) if name not in taken)
        return [before + comma + name for name in found if name.startswith(begun)]

    return complete


def _possible_names(parameter: str, ctx: Context) -> Iterable[str]:
    """Return all names that a parameter of a command takes."""
    from attnprof import registry

    if parameter in MECHANISMS:
        return [*registry.names(), *(point.name for point, why in registry.plugins() if not why)]
    if parameter == "settings":  # of the mechanisms asked for, or of all
        from attnprof.cli.program import names_in

        asked = {*names_in(map(ctx.params.get, MECHANISMS))} & {*registry.names()}
        mechanisms = map(registry.get, asked or registry.names())
        return sorted({f"{name}=" for each in mechanisms for name in each.parameter_names()})
    if parameter in ("claim", "table", "figure"):
        from attnprof.papers import documents as known

        named = {*ctx.args, *(ctx.params.get("documents") or ())}
        those = (its for its in known.DOCUMENTS.values() if {its.number, its.folder} & named)
        parts = (its.part(f"{parameter}s", f"{parameter}S".upper()) or () for its in those)
        return known.claims() if parameter == "claim" else chain.from_iterable(parts)
    of_command = NAMES[parameter]
    names = of_command.get(ctx.info_name or "", of_command.get(_EVERY, ()))
    if isinstance(names, str):
        module, _, constant = names.partition(":")
        names = getattr(import_module(f"attnprof.{module}"), constant)
    return names
