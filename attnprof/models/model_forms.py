"""The closed forms of a phase of a model, by kind of layer and part, and of the whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.models.costs import LayerKind, by_part, of_all_layers
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import Sizes

#: Costs by kind of layer and part, by quantity.
Parts = Mapping[tuple[LayerKind, str], Mapping[str, Any]]


@dataclass(frozen=True)
class ModelForms:
    """A phase of a model in closed form: by kind of layer and part, and of the whole.

    In B, N and symbols for numbers of layers, whose values are ``layers``. ``whole`` lacks
    quantities that were withheld, as ``notes`` say; the other fields are those of
    :class:`PhaseForms`.
    """

    method: str
    parts: Parts
    whole: Mapping[str, Any]
    domain: tuple[str, ...] = ()
    verified_at: tuple[Mapping[str, int], ...] = ()
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    layers: Mapping[str, int] = field(default_factory=dict)
    holds: Callable[[Sizes], bool] = field(default=lambda _: True, compare=False, repr=False)


def of_whole(forms: PhaseForms, places: Any, kinds: Sequence[LayerKind]) -> ModelForms:
    """Return the forms of a phase that was derived with all layers."""
    whole = {name: formula.expression for name, formula in forms.formulas.items()}
    whole = {name: expression for name, expression in whole.items() if expression is not None}
    all_places = of_all_layers(forms.trace, places, kinds) if forms.method != "counted" else None
    costs = by_part(forms.trace, forms.phase, all_places, kinds) if all_places is not None else {}
    parts = {key: {q: x for q, x in values.items() if q in whole} for key, values in costs.items()}
    how = forms.domain, forms.verified_at, forms.uncounted, forms.notes
    return ModelForms(forms.method, parts, whole, *how, holds=forms.holds)


def at_layers(expression: Any, layers: Mapping[str, int]) -> Any:
    """Return an expression with numbers for the symbols of numbers of layers."""
    known = layers and hasattr(expression, "subs")
    return expression.subs({symbol(x): n for x, n in layers.items()}) if known else expression
