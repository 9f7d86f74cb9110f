"""Our formula for what somebody printed one: derived from code, or a mechanism's closed form."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
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
    """Where our formula comes from; sizes that are ``fixed``, a shape ``at`` which code runs."""

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
        """``derived`` for code, ``formula`` for a mechanism, unless something else is asked."""
        return self.kind or (DERIVED if is_place(self.target) else FORMULA)

    @property
    def layer(self) -> str | None:
        """A mechanism's scope; somebody's module has none."""
        return None if is_place(self.target) else self.scope or "layer"


@dataclass(frozen=True)
class Formulas:
    """Our formulas of one phase, by quantity; ``verified_at`` are shapes of runs that agree.

    None where only numbers could be counted: ``numbers``, at the shape that was asked for.
    """

    forms: Mapping[str, Any]
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
        """Sizes for which alone the formula holds, as the domain says: ``N = 11``."""
        matches = (re.fullmatch(r"(\w+) = (\d+)", condition) for condition in self.domain)
        return {match[1]: int(match[2]) for match in matches if match}

    def shapes(self, fixed: Mapping[str, int]) -> list[dict[str, int]]:
        """Sizes to compare at: those of the runs, usual ones, and every mix of small and large."""
        mixes = product((2, 8192), repeat=len(self.symbols))
        corners = (dict(zip(self.symbols, mix, strict=True)) for mix in mixes)
        usual = ({name: shape.get(name, 64) for name in self.symbols} for shape in SHAPES)
        shapes: list[dict[str, int]] = []
        for shape in (*self.verified_at, *usual, *corners):
            sizes = {name: {**shape, **fixed}[name] for name in self.symbols}
            if sizes not in shapes and (shape in self.verified_at or self.fits(sizes)):
                shapes.append(sizes)
        return shapes

    def gives(self, quantity: str, shape: Mapping[str, int], printed: Any) -> bool:
        """Whether a quantity has the value that another formula has at a shape."""
        if isinstance(self.forms, ClosedForms):
            ours = self.forms.at(quantity, shape)
        else:
            form = self.forms[quantity]
            ours = None if form is None else value(form, shape)
        return bool(ours == value(printed, shape))

    def fits(self, shape: Mapping[str, int]) -> bool:
        """Whether it is a shape that the formula holds for."""
        try:
            return self.holds(shape)
        except (KeyError, ArithmeticError, TypeError):
            return False


def symbols_of(source: Source) -> tuple[str, ...]:
    """The sizes our formula is over."""
    if source.way == FORMULA:
        return tuple(SYMBOLS)
    return tuple(_target(source).symbols)


def own_formulas(source: Source, phases: Sequence[str]) -> dict[str, Formulas]:
    """Our formulas by phase; RequestError for what cannot be asked of this target."""
    if is_place(source.target) and source.way == FORMULA:
        raise RequestError(
            f"--kind formula is for mechanisms of attnprof list; {source.target} is derived"
        )
    if source.convention == "operations" and source.way == DERIVED:
        raise RequestError(
            "--convention operations counts a definition, which only mechanisms of attnprof list "
            "have (--attention NAME); code is counted as it runs: --convention flops"
        )
    if source.way == DERIVED:
        return _derived(source, phases)
    for flag, given in (("--arg", source.args), ("--input", source.inputs)):
        if given:
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
    known = {n: size for n, size in (*source.at, *source.fixed) if n in target.symbols}
    derivation = derived(target, list(phases), known)
    return {
        phase: Formulas(
            forms=_with_macs({name: form.expression for name, form in forms.formulas.items()}),
            symbols=derivation.symbols,
            domain=forms.domain,
            method=forms.method,
            verified_at=tuple(
                {name: run[name] for name in derivation.symbols if name in run}
                for run in forms.verified_at
            ),
            uncounted=forms.uncounted,
            notes=tuple(derivation.notes),
            numbers=_with_macs({name: form.value for name, form in forms.formulas.items()}),
            holds=forms.holds,
        )
        for phase, forms in derivation.phases.items()
    }


def _with_macs(forms: dict[str, Any]) -> dict[str, Any]:
    """The same with multiply-accumulates, where products are known."""
    products = forms.get("matmul_flops")
    return forms if products is None else {**forms, MACS: sympy.sympify(products) / 2}


# -- closed forms ----------------------------------------------------------------------
class ClosedForms(dict[str, Any]):
    """A mechanism's closed forms by quantity, each made when asked for; ``at`` has numbers."""

    def __init__(
        self, name: str, sizes: Workload, names: Sequence[str], count: Callable[..., Any]
    ) -> None:
        super().__init__(dict.fromkeys(names))
        self.name, self.sizes, self.count = name, sizes, count

    def __getitem__(self, quantity: str) -> Any:
        try:
            return self.count(self.sizes, quantity)
        except TypeError as error:
            raise RequestError(
                f"{self.name} has no closed form in symbols with these parameters: "
                "type --kind derived"
            ) from error

    def at(self, quantity: str, shape: Mapping[str, int]) -> Any:
        """A quantity's value at a shape."""
        return self.count(_sized(self.sizes, shape.items()), quantity)


def _closed_form(source: Source, phase: str) -> Formulas:
    mechanism = registry.configured([source.target], dict(source.params))[0]
    asked = Workload(128, 8, 64, causal=source.causal, phase=phase, dtype=source.dtype)
    scope = source.layer or "layer"
    mechanism.check(asked, scope)
    sizes = _sized(cost_records.symbolic(asked), source.fixed)

    @cache
    def counted(sizes: Workload, quantity: str) -> Any:
        if source.convention == "flops" or quantity == "parameters":
            return quantity_of(mechanism, sizes, scope, quantity)
        return defined_rows(mechanism, sizes, scope)[-1].values[quantity]

    names: tuple[str, ...] = (*DEFINED, "parameters")
    if source.convention == "flops":
        state = ["state_entries"] if mechanism.abilities.decode else []
        defined = ["operations"] if defined_total(mechanism, asked, scope) is not None else []
        names = (*EXECUTED, *MEMORY, "parameters", *state, *defined, MACS)
    return Formulas(ClosedForms(mechanism.name, sizes, names, counted), tuple(SYMBOLS))


def _sized(sizes: Workload, shape: Iterable[tuple[str, int]]) -> Workload:
    return sizes.with_(**{SYMBOLS[name]: size for name, size in shape})
