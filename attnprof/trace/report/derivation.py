"""The result of a derivation: formulas by phase and quantity, their domain, costs by submodule."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.algebra.maxima import running_maximum
from attnprof.algebra.values import Value, evaluate
from attnprof.errors import RequestError
from attnprof.record import Report
from attnprof.trace.events import Size, Trace, added, bound, flops_of
from attnprof.trace.request.target import LARGE, Sizes
from attnprof.units import grouped


@dataclass(frozen=True)
class Formula:
    """One quantity of one phase as a formula.

    ``expression`` is over the request's symbols. It is None where the code was only counted at the
    asked shape (``value`` is the number), or where a run contradicted the formula: ``withheld``
    says at which shape and operation.
    """

    phase: str
    quantity: str
    expression: Any
    value: Value | None = None
    withheld: str = ""


@dataclass(frozen=True)
class PhaseForms:
    """The formulas of one phase, the method that found them, and where they hold.

    ``domain`` are conditions on the symbols, in words; ``holds`` tells if a shape meets them.
    ``verified_at`` are shapes at which a run gave the numbers of the formulas. ``uncounted`` is
    what the totals leave out (they are then "at least"); ``notes`` say why another method was not
    taken, and what else to know. ``trace`` is the run behind the formulas; ``counted`` runs the
    code at a shape outside of the domain.
    """

    phase: str
    method: str
    formulas: Mapping[str, Formula]
    domain: tuple[str, ...] = ()
    verified_at: tuple[Mapping[str, int], ...] = ()
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trace: Trace = field(default_factory=Trace, compare=False, repr=False)
    holds: Callable[[Sizes], bool] = field(default=lambda _: True, compare=False, repr=False)
    counted: Callable[[Sizes], Mapping[str, Value]] = field(
        default=lambda _: {}, compare=False, repr=False
    )

    def bound(self, quantity: str) -> str:
        """Return how a quantity relates to what runs: see :func:`.events.bound`."""
        return bound(self.trace, self.phase, quantity)


@dataclass(frozen=True)
class Submodule:
    """The costs of a submodule, or of ``times`` alike ones together (``layers.0-11``).

    ``flops`` and ``parameters`` (numbers of entries) include the submodules inside;
    ``flops_itself`` does not. A backward operation belongs to the submodule whose forward operation
    it differentiates. ``peak_bytes`` is the most that is held at once of what the submodule made
    (results, what is saved for the backward pass, gradients), None if unknown. ``name`` is that of
    ``named_modules``, empty for the module itself.
    """

    name: str
    times: int
    flops: Any
    flops_itself: Any
    parameters: Any
    peak_bytes: Any
    inside: tuple["Submodule", ...] = field(default=(), repr=False)

    @property
    def last(self) -> str:
        """The last part of the name: ``proj`` of ``layers.0.proj``."""
        return self.name.rpartition(".")[2]

    def all(self) -> Iterator["Submodule"]:
        """Yield the submodule, then all inside it, in order."""
        yield self
        for part in self.inside:
            yield from part.all()


@dataclass(frozen=True)
class Derivation:
    """Closed forms of a module or function, by phase, over ``symbols``.

    ``inputs`` are those of the call as ``--input`` takes them; ``notes`` say what was guessed;
    ``dtype`` is that of weights and floating inputs. A notebook shows the formulas as a table.

    >>> formulas = attnprof.derive(torch.square, inputs={"x": "N, d"}, phases="forward")
    >>> formulas.expression("flops"), formulas.at("flops", N=3, d=5)
    (N*d, 15)
    """

    name: str
    symbols: tuple[str, ...]
    phases: Mapping[str, PhaseForms]
    asked: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dtype: str = "float32"

    def expression(self, quantity: str = "flops", phase: str = "forward") -> Any:
        """Return the sympy expression of a quantity; RequestError for what was not derived."""
        return self._formula(quantity, phase).expression

    def at(self, quantity: str = "flops", phase: str = "forward", **sizes: int) -> Value:
        """Return a quantity's exact value at sizes, like ``B=1, N=4096, h=8, d=64``.

        Outside of the formula's domain, or without a formula, the code is run there, on fake
        tensors. Raises :class:`RequestError` for a missing size and where neither can be.
        """
        expression = self._formula(quantity, phase).expression
        free = {s.name for s in getattr(expression, "free_symbols", ())}  # a plain number has none
        missing = sorted((set(self.symbols) if expression is None else free) - set(sizes))
        if missing:
            raise RequestError(f"{quantity} depends on {', '.join(missing)}: give a value for each")
        forms = self.phases[phase]
        shape = {name: sizes[name] for name in self.symbols if name in sizes}
        unseen = len(shape) == len(self.symbols) and shape not in forms.verified_at
        if expression is None or (unseen and not forms.holds(shape)):
            return forms.counted(shape)[quantity]
        return evaluate(expression, sizes)

    def submodules(self, phase: str = "forward") -> list[Submodule]:
        """Return the costs of each submodule, in the order of ``named_modules``.

        The first is the module itself; a function has none. Numbered siblings that cost the same
        are one.
        """
        self._formula("flops", phase)
        forms = self.phases[phase]
        withheld = {name for name, formula in forms.formulas.items() if formula.withheld}
        fields = {"flops": ("flops", "flops_itself"), "peak_bytes": ("peak_bytes",)}
        blank: dict[str, Any] = {part: None for name in withheld for part in fields.get(name, ())}
        return [replace(part, **blank) for part in submodules(forms.trace, phase)]

    def report(self) -> Report:
        """Return a record for each quantity and phase; the summary says where costs arise."""
        from attnprof.trace.report.records import report_of

        return report_of(self)

    def to_frame(self) -> Any:
        """Return the formulas as a pandas DataFrame, a row for each phase and quantity."""
        return self.report().to_frame()

    def _repr_html_(self) -> str:
        from attnprof.record.report import html_table

        rows = [
            (phase, quantity, formula.value if formula.expression is None else formula.expression)
            for phase, forms in self.phases.items()
            for quantity, formula in forms.formulas.items() if formula.expression != 0
        ]  # fmt: skip
        holds = [
            f"{phase} holds for: {'; '.join(forms.domain) or 'all sizes'}"
            for phase, forms in self.phases.items()
        ]
        columns = [("phase", "text"), ("quantity", "text"), ("formula", "code")]
        return html_table(columns, rows, self.name, [*holds, *self.notes])

    def _formula(self, quantity: str, phase: str) -> Formula:
        if phase not in self.phases:
            raise RequestError(f"phase {phase} was not derived; there is {', '.join(self.phases)}")
        forms = self.phases[phase].formulas
        if quantity not in forms:
            raise RequestError(f"no quantity '{quantity}'; possible: {', '.join(forms)}")
        return forms[quantity]


# -- costs of each submodule ------------------------------------------------------------
def submodules(trace: Trace, phase: str) -> list[Submodule]:
    """Return the costs of each submodule, ordered by ``named_modules``; equal siblings as one."""
    calls = grouped(trace.part(phase), lambda call: call.module)
    names = dict.fromkeys(above for x in ("", *trace.modules, *calls) for above in _path(x))
    inside: dict[str, list[str]] = {name: [] for name in names}
    for name in filter(None, names):
        inside[name.rpartition(".")[0]].append(name)
    shown = {name: name for name in names}

    def costs_of(name: str) -> Submodule:
        parts = [costs_of(part) for part in inside[name]]
        itself = flops_of(calls.get(name, []))
        flops = added([itself, *(part.flops for part in parts)])
        entries = added([trace.modules.get(name, 0), *(part.parameters for part in parts)])
        return Submodule(name, 1, flops, itself, entries, None, tuple(_equal_as_one(parts, shown)))

    ordered = list(costs_of("").all())
    peaks = _peaks(trace, phase, shown)
    return [replace(part, peak_bytes=peaks.get(part.name)) for part in ordered]


def _path(name: str) -> list[str]:
    """Return a name after the names it is inside of: ``["", "layers", "layers.0"]``."""
    return ["", *accumulate(name.split("."), "{}.{}".format)] if name else [""]


def _equal_as_one(parts: list[Submodule], shown: dict[str, str]) -> Iterator[Submodule]:
    """Yield siblings; neighbours with numbers and equal costs as one (``layers.0-11``).

    ``shown`` has each module's name in the result, and is changed to the joint one.
    """
    for (_, numbered), group in groupby(parts, lambda part: (_cost(part), part.last.isdigit())):
        same = list(group)
        if not numbered or len(same) == 1:
            yield from same
            continue
        together = f"{same[0].name}-{same[-1].last}"
        for part in same:
            for name, now in shown.items():
                if f"{now}.".startswith(f"{part.name}."):
                    shown[name] = together + now.removeprefix(part.name)
        yield _repeated(same[0], len(same), together)


def _cost(part: Submodule) -> tuple[Any, ...]:
    inside = tuple((one.last, _cost(one)) for one in part.inside)
    return part.flops, part.flops_itself, part.parameters, part.times, inside


def _repeated(part: Submodule, times: int, name: str) -> Submodule:
    """Return so many equal submodules as one of this name."""
    sums = ("times", "flops", "flops_itself", "parameters")
    return replace(
        part,
        name=name,
        inside=tuple(_repeated(one, times, f"{name}.{one.last}") for one in part.inside),
        **{field: added([getattr(part, field)] * times) for field in sums},
    )


def _peaks(trace: Trace, phase: str, shown: dict[str, str]) -> dict[str, Any]:
    """Return the peak bytes of the storages that each submodule made; {} for a trace without any.

    ``shown`` has each module's name in the result.
    """
    start: dict[str, list[Size]] = {name: [] for name in shown.values()}
    steps: dict[str, list[tuple[Size, Size, Size]]] = {name: [] for name in start}
    storages: dict[int, tuple[list[str], Size]] = {}
    for call in trace.calls:
        names, before = _path(shown[call.module]), phase == "backward" and call.part == "forward"
        changes = [(owners, -size, 0) for owners, size in map(storages.__getitem__, call.died)]
        storages |= {number: (names, size) for number, size in call.born}
        for owners, size, workspace in [*changes, (names, call.takes, call.workspace)]:
            for name in owners:
                if before:
                    start[name].append(size)
                else:
                    steps[name].append((size, workspace, 0))
    active = [name for name in start if storages and steps[name]]
    return {name: running_maximum(added(start[name]), steps[name]) for name in active}


# -- curves over the length, for the figure of a page ----------------------------------------
#: Quantities that are drawn, in this order.
DRAWN = ("flops", "bytes_moved", "peak_bytes")
#: The length in the middle if none is asked for, and how often it is halved and doubled: a block
#: length that divides it divides most of these.
MIDDLE, DOUBLINGS = 4096, 6
#: How far below a length one is tried: formulas of a shorter last block hold at no whole blocks.
BELOW = 8


def curves_of(derivation: Derivation) -> list[dict[str, Any]]:
    """Return a curve over N for each phase and drawn quantity that has a formula."""
    curves = []
    for phase, forms in derivation.phases.items() if "N" in derivation.symbols else ():
        sizes, lengths = _lengths_inside(derivation, forms)
        for quantity in DRAWN if len(lengths) > 1 else ():
            expression = forms.formulas[quantity].expression
            if expression is not None:
                values = [float(evaluate(expression, {**sizes, "N": n})) for n in lengths]
                curve = {"phase": phase, "quantity": quantity, "sizes": sizes}
                curves.append({**curve, "seq_len": lengths, "value": values})
    return curves


def _lengths_inside(derivation: Derivation, forms: PhaseForms) -> tuple[dict[str, int], list[int]]:
    """Return sizes for the symbols other than N, and lengths at which the formulas hold with them.

    The sizes are the asked ones, else usual ones, else the sizes of a run that agreed.
    """
    names = [name for name in derivation.symbols if name != "N"]
    middle = derivation.asked.get("N", MIDDLE)
    lengths = [int(middle * 2.0**n) for n in range(-DOUBLINGS, DOUBLINGS + 1)]
    verified = forms.verified_at[-1] if forms.verified_at else {}
    usual = {**verified, **LARGE}
    for choice in ({**usual, **derivation.asked}, usual, verified):
        sizes = {name: choice[name] for name in names if name in choice}
        if len(sizes) < len(names):
            continue
        near = (range(n, max(0, n - BELOW), -1) for n in lengths)
        inside = (next((m for m in some if forms.holds({**sizes, "N": m})), 0) for some in near)
        distinct = list(dict.fromkeys(filter(None, inside)))
        if len(distinct) > 1:
            return sizes, distinct
    return {}, []


def tokens_first(
    inputs: Iterable[str], notes: Iterable[str], forms: Mapping[str, PhaseForms]
) -> Iterator[str]:
    """Yield a note on guessed inputs (B, N, …) if products grow with B**2, not with N**2."""
    guessed = "".join(note for note in notes if note.startswith("guessed: "))
    typed = [one for one in inputs if ": B, N, " in one and f'"{one}"' in guessed]
    products = [one.formulas["matmul_flops"].expression for one in forms.values()]
    if typed and any(_is_square(one, "B") > _is_square(one, "N") for one in products):
        swapped = " ".join(f'--input "{one.replace(": B, N,", ": N, B,")}"' for one in typed)
        yield f"products grow with B**2: if the code takes tokens first, type {swapped}"


def _is_square(expression: Any, name: str) -> bool:
    """Return whether a term of a formula has the square of a size."""
    return hasattr(expression, "coeff") and expression.coeff(symbol(name), 2) != 0
