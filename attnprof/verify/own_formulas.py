"""Our formulas for costs that somebody printed: derived from code, or a mechanism's closed form."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Any

import sympy

from attnprof import registry
from attnprof.closed_form import cost_records
from attnprof.closed_form.cost_records import EXECUTED, MEMORY, defined_rows, defined_total
from attnprof.closed_form.quantities import quantity_of
from attnprof.errors import RequestError
from attnprof.user_code import is_place
from attnprof.verify.comparison import value
from attnprof.workload import SYMBOLS, Workload

DERIVED, FORMULA = "derived", "formula"
KINDS = (DERIVED, FORMULA)
#: Multiply-accumulates, as papers like to count: half of the products' operations.
MACS = "macs"
#: Quantities of a mechanism's definition, as opposed to its executed text.
DEFINED = (*cost_records.COUNTED[:4], "operations")
#: Shapes at which a closed form is compared and shown.
SHAPES = tuple(
    {"B": batch, "N": tokens, "h": heads, "d": width}
    for batch, tokens, heads, width in (
        (1, 128, 8, 64), (1, 1024, 8, 64), (1, 8192, 8, 64),
        (2, 100, 3, 17), (3, 4096, 16, 128), (5, 7, 2, 5), (4, 257, 5, 33), (2, 65536, 1, 16),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """The origin of our formula: a target and its settings.

    ``fixed`` are sizes that the formula has as numbers, ``at`` the shape at which code is derived.
    """

    target: str
    kind: str = ""
    convention: str = "flops"
    scope: str = ""
    causal: bool = False
    dtype: str = "float32"
    args: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    fixed: tuple[tuple[str, int], ...] = ()
    at: tuple[tuple[str, int], ...] = ()

    @property
    def way(self) -> str:
        """``derived`` for code, ``formula`` for a mechanism, unless ``kind`` says otherwise."""
        return self.kind or (DERIVED if is_place(self.target) else FORMULA)

    @property
    def layer(self) -> str | None:
        """A mechanism's scope; None for user code."""
        return None if is_place(self.target) else self.scope or "layer"


@dataclass(frozen=True)
class Formulas:
    """Our formulas of one phase; ``verified_at`` are shapes of runs that agree.

    ``form`` returns the formula of one of the ``quantities``, ``at`` its value at a shape. The
    formula is None if only ``numbers`` could be counted, at the asked shape.
    """

    quantities: Sequence[str]
    form: Callable[[str], Any]
    at: Callable[[str, Mapping[str, int]], Any]
    symbols: tuple[str, ...]
    domain: tuple[str, ...] = ()
    method: str = "closed form"
    verified_at: tuple[dict[str, int], ...] = ()
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    holds: Callable[[Mapping[str, int]], bool] = field(default=lambda _: True, compare=False)

    @property
    def pinned(self) -> dict[str, int]:
        """Sizes that the domain fixes to a number: ``N = 11``."""
        matches = (re.fullmatch(r"(\w+) = (\d+)", condition) for condition in self.domain)
        return {match[1]: int(match[2]) for match in matches if match}

    def shapes(self, fixed: Mapping[str, int]) -> list[dict[str, int]]:
        """Return shapes to compare at: of the runs, usual ones, every mix of small and large."""
        mixes = product((2, 8192), repeat=len(self.symbols))
        corners = (dict(zip(self.symbols, mix, strict=True)) for mix in mixes)
        usual = ({name: shape.get(name, 64) for name in self.symbols} for shape in SHAPES)
        shapes: list[dict[str, int]] = []
        for shape in (*self.verified_at, *usual, *corners):
            sizes = {name: {**shape, **fixed}[name] for name in self.symbols}
            if sizes not in shapes and (shape in self.verified_at or self.fits(sizes)):
                shapes.append(sizes)
        return shapes

    def fits(self, shape: Mapping[str, int]) -> bool:
        """Return whether the formula holds for a shape."""
        try:
            return self.holds(shape)
        except (KeyError, ArithmeticError, TypeError):
            return False


def symbols_of(source: Source) -> tuple[str, ...]:
    """Return the sizes in our formula."""
    if source.way == FORMULA:
        return tuple(SYMBOLS)
    return tuple(_target(source).symbols)


def own_formulas(source: Source, phases: Sequence[str]) -> dict[str, Formulas]:
    """Return our formulas by phase; RequestError if the target has none of this kind."""
    if is_place(source.target) and source.way == FORMULA:
        raise RequestError(
            f"--kind formula is for mechanisms of attnprof list; {source.target} is derived: leave "
            "--kind out"
        )
    if source.convention == "operations" and source.way == DERIVED:
        raise RequestError(
            "--convention operations counts a definition, which only mechanisms of attnprof list "
            "have (--attention NAME); code is counted as it runs: --convention flops"
        )
    if source.way == DERIVED:
        return _derived(source, phases)
    for flag, texts in (("--arg", source.args), ("--input", source.inputs)):
        if texts:
            raise RequestError(
                f"{flag} is for your own modules; {source.target} takes --set name=value"
            )
    return {phase: _closed_form(source, phase) for phase in phases}


# -- derived ---------------------------------------------------------------------------
def _target(source: Source) -> Any:
    from attnprof.trace.request.lookup import target_of

    return target_of(
        source.target, list(source.args), list(source.inputs), dict(source.params),
        source.layer if source.scope else None, source.causal, source.dtype,
    )  # fmt: skip


def _derived(source: Source, phases: Sequence[str]) -> dict[str, Formulas]:
    from attnprof.trace.solve.derive import derived

    target = _target(source)
    shape = {n: size for n, size in (*source.at, *source.fixed) if n in target.symbols}
    derivation = derived(target, list(phases), shape)
    formulas = {}
    for phase, forms in derivation.phases.items():
        expressions = _with_macs({name: x.expression for name, x in forms.formulas.items()})
        runs = ({n: run[n] for n in derivation.symbols if n in run} for run in forms.verified_at)
        formulas[phase] = Formulas(
            list(expressions), expressions.__getitem__, partial(_value_of, expressions),
            derivation.symbols, forms.domain, forms.method, tuple(runs), forms.uncounted,
            tuple(derivation.notes), holds=forms.holds,
            numbers=_with_macs({name: x.value for name, x in forms.formulas.items()}),
        )  # fmt: skip
    return formulas


def _value_of(expressions: Mapping[str, Any], quantity: str, shape: Mapping[str, int]) -> Any:
    form = expressions[quantity]
    return None if form is None else value(form, shape)


def _with_macs(forms: dict[str, Any]) -> dict[str, Any]:
    """Return the formulas, with multiply-accumulates added if matrix products are known."""
    products = forms.get("matmul_flops")
    return forms if products is None else {**forms, MACS: sympy.sympify(products) / 2}


# -- closed forms ----------------------------------------------------------------------
def _closed_form(source: Source, phase: str) -> Formulas:
    mechanism = registry.configured([source.target], dict(source.params))[0]
    workload = Workload(128, 8, 64, causal=source.causal, phase=phase, dtype=source.dtype)
    scope = source.layer or "layer"
    mechanism.check(workload, scope)
    sizes = _sized(cost_records.symbolic(workload), source.fixed)

    @cache
    def counted(sizes: Workload, quantity: str) -> Any:
        if source.convention == "flops" or quantity == "parameters":
            return quantity_of(mechanism, sizes, scope, quantity)
        return defined_rows(mechanism, sizes, scope)[-1].values[quantity]

    def form(quantity: str) -> Any:
        try:
            return counted(sizes, quantity)
        except TypeError as error:
            raise RequestError(
                f"{mechanism.name} has no closed form in symbols with these parameters: "
                "type --kind derived"
            ) from error

    def at(quantity: str, shape: Mapping[str, int]) -> Any:
        return counted(_sized(sizes, shape.items()), quantity)

    names: tuple[str, ...] = (*DEFINED, "parameters")
    if source.convention == "flops":
        state = ["state_entries"] if mechanism.abilities.decode else []
        defined = ["operations"] if defined_total(mechanism, workload, scope) is not None else []
        names = (*EXECUTED, *MEMORY, "parameters", *state, *defined, MACS)
    return Formulas(names, form, at, tuple(SYMBOLS))


def _sized(sizes: Workload, shape: Iterable[tuple[str, int]]) -> Workload:
    return sizes.with_(**{SYMBOLS[name]: size for name, size in shape})
