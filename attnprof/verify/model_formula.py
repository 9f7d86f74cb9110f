"""Explain the errors of a hand-written formula for a model's FLOPs a token, term by term.

The part of the formula that grows with N is attention, the rest are products with parameters. Each
is compared with *readings*: our count with changes that an author may have meant (another mask, no
recomputation, key heads for query heads; embeddings in, routers out, all experts). The matching
reading with the fewest changes is reported change by change; their FLOPs add up to the difference.
Entry point: :func:`model_formula_report`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.errors import RequestError
from attnprof.models.conventions import (
    EXECUTED,
    FULL,
    MATRICES,
    NAMES,
    NAMES_OF_CONVENTIONS,
    OTHERS,
    PHASES,
    TOKEN,
    AttentionShape,
    Mask,
    ModelSizes,
    count,
    executed,
    expression,
    summed,
)
from attnprof.record import FormulaTermRecord, Report
from attnprof.verify.printed import check_names, names_in, read_formula

N = symbol("N")
#: Lengths at which readings are compared; no usual window or chunk is as long.
_LENGTHS = (1, 3, 61, 1009, 5003, 70001, 1000003)
#: The most changes that are tried to explain products.
_CHANGES = 4
#: FLOPs per parameter that an author may have meant, with a description.
_FACTORS = {
    "train": {6: "", 2: "forward pass alone (2x)", 4: "backward pass alone (4x)",
              8: "with a second forward pass (8x)"},
    "forward": {2: "", 1: "multiply-adds (1x)", 6: "with the backward pass (6x)"},
}  # fmt: skip

Values = tuple[Fraction, ...]


# -- readings of attention: ways in which an author may have counted it -------------------
@dataclass(frozen=True)
class AttentionReading:
    """A way of counting attention that an author may have meant; by default, as it is executed."""

    backward: str = ""
    windows: str = ""
    keys: str = ""
    heads: str = ""
    widths: str = ""
    layers: str = ""
    repeats: str = ""

    def changes(self) -> int:
        """Return the number of changes against what is executed; a repeat counts as three."""
        return sum(map(bool, vars(self).values())) + 2 * bool(self.repeats)


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "windows": ("", "windows counted dense"),
    "keys": ("", "causal counted full: N keys, not (N + 1)/2",
             "causal counted N/2 keys, not (N + 1)/2"),
    "backward": ("", "backward 2x, without the fused kernel's recomputation",
                 "forward pass alone", "with the backward pass, 2x",
                 "multiply-adds, not FLOPs"),
    "heads": ("", "key heads instead of query heads"),
    "widths": ("", "values as wide as keys", "hidden size / heads as the width of a head"),
    "layers": ("", "attention in every layer"),
    "repeats": ("", "attention counted twice", "attention halved once more"),
}  # fmt: skip


def attention_flops(
    sizes: ModelSizes, phase: str, reading: AttentionReading
) -> dict[Mask, Fraction]:
    """Return FLOPs of attention by mask, counted by a reading."""
    total = dict[Mask, Fraction]()
    several = sum(x.layers for x in sizes.attention)
    for x in sizes.attention:
        layers = Fraction(x.layers * sizes.layers, several) if reading.layers else x.layers
        key, value = x.key_dim, x.value_dim
        if reading.widths:
            key = value = key if "keys" in reading.widths else sizes.hidden // x.heads
        heads = x.kv_heads if reading.heads else x.heads
        widths = Fraction(_widths(key, value, phase, reading.backward)) * heads * layers
        mask, factor = _mask(x, reading)
        factor *= {"": 1, "attention counted twice": 2}.get(reading.repeats, Fraction(1, 2))
        total[mask] = total.get(mask, Fraction(0)) + widths * factor
    return total


def _widths(key: int, value: int, phase: str, backward: str) -> int:
    if backward == "multiply-adds, not FLOPs":
        return key + value
    if backward == "forward pass alone" or (phase == "forward" and not backward):
        return 2 * (key + value)
    return 6 * (key + value) if backward else 2 * (4 * key + 3 * value)


def _mask(shape: AttentionShape, reading: AttentionReading) -> tuple[Mask, Fraction]:
    """Return a layer's mask by a reading, and the factor of its pairs."""
    mask = shape.mask
    if mask.kind in ("window", "chunk") and reading.windows:
        mask = Mask("causal")
    if not reading.keys or mask.kind not in ("window", "causal"):
        return mask, Fraction(1)
    full = FULL if mask.kind == "causal" else Mask("capped", mask.size)
    return full, Fraction(1) if "full" in reading.keys else Fraction(1, 2)


def mean_flops(counted: Mapping[Mask, Fraction], n: int) -> Fraction:
    """Return FLOPs a token of a sequence of ``n`` tokens."""
    return sum((flops * mask.pairs(n) for mask, flops in counted.items()), Fraction(0)) / n


def attention_readings(sizes: ModelSizes, phase: str) -> list[AttentionReading]:
    """Return all different readings of this model, the ones with the fewest changes first."""
    possible = dict(_CHOICES)
    masks = {x.mask.kind for x in sizes.attention}
    shapes = sizes.attention
    for name, matters in {
        "windows": bool(masks & {"window", "chunk"}),
        "keys": bool(masks & {"window", "causal"}),
        "heads": any(x.heads != x.kv_heads for x in shapes),
        "layers": sum(x.layers for x in shapes) != sizes.layers,
    }.items():
        possible[name] = possible[name] if matters else ("",)
    matter = {
        "": True,
        "values as wide as keys": any(x.key_dim != x.value_dim for x in shapes),
        "hidden size / heads as the width of a head": any(
            x.key_dim != sizes.hidden // x.heads for x in shapes
        ),
    }
    possible["widths"] = tuple(name for name, differs in matter.items() if differs)
    of_phase = (0, 1, 2, 4) if phase == "train" else (0, 3, 4)
    possible["backward"] = tuple(_CHOICES["backward"][i] for i in of_phase)
    every = (
        AttentionReading(**dict(zip(possible, x, strict=True))) for x in product(*possible.values())
    )
    return sorted(every, key=AttentionReading.changes)


def mean_expression(counted: Mapping[Mask, Fraction]) -> Any:
    """Return FLOPs a token as a sympy expression in N."""
    factors = {mask: sympy.Rational(x.numerator, x.denominator) for mask, x in counted.items()}
    return sympy.expand(sympy.Add(*(factor * mask.mean() for mask, factor in factors.items())))


# -- the report ------------------------------------------------------------------------
@dataclass(frozen=True)
class FormulaChange:
    """A step from our count to the formula: its term, a description, and FLOPs a token in N."""

    term: str
    what: str
    before: Any
    after: Any


def model_formula_report(
    sizes: ModelSizes, text: str, phase: str, n: int, where: Mapping[str, str] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Report:  # fmt: skip
    """Return a record a term in which a formula differs from what is executed, then both sums.

    ``text`` has the symbols of ``sizes`` and N; ``where`` gives the meanings of other names. The
    summary names conventions that equal the formula. Raises :class:`RequestError` for text that is
    no formula, or has unknown names.
    """
    theirs, notes = _read(sizes, text, where or {})
    ours = expression(count(sizes, EXECUTED, phase))
    rows = list(_changes(sizes, theirs, phase))
    records = [_record(row, n) for row in rows]
    records.append(_record(FormulaChange("all", "", ours, theirs), n))
    same_as = _conventions(sizes, theirs)
    same = _at(theirs) == _at(ours)
    used = sorted(names_in(read_formula(text)) & {*sizes.symbols})
    summary = {
        "name": sizes.name, "formula": text, "phase": phase, "seq_len": n, "match": same,
        "conventions": same_as, "symbols": {name: sizes.symbols[name] for name in used},
        "answer": _answer(records, same_as, phase, same=same), "notes": [*sizes.notes, *notes],
    }  # fmt: skip
    return Report("verify-formula --model", records, summary, environment or {})


def _read(sizes: ModelSizes, text: str, where: Mapping[str, str]) -> tuple[Any, list[str]]:
    """Return a formula as an expression in N alone, FLOPs a token, and notes."""
    numbers = {name: sympy.Integer(value) for name, value in sizes.symbols.items()}
    meanings = {name: read_formula(meaning, numbers) for name, meaning in where.items()}
    check_names(read_formula(text, meanings), [*sizes.symbols, "N"], text)
    theirs = sympy.expand(read_formula(text, {**numbers, **meanings}))
    if names_in(theirs) - {"N"}:
        raise RequestError(f"formula '{text}' is not in N alone; known are {', '.join(numbers)}")
    if theirs.is_polynomial(N) and sympy.degree(theirs, N) == 2 and not theirs.subs(N, 0):
        note = "the formula is of a whole sequence: it is divided by N"
        return sympy.expand(theirs / N), [note]
    return theirs, []


def _at(value: Any) -> Values:
    """Return an expression's values at the lengths of comparison."""
    return tuple(Fraction(evaluate(value, {"N": n})) for n in _LENGTHS)


def _conventions(sizes: ModelSizes, theirs: Any) -> list[str]:
    """Return the conventions and phases whose count equals the formula."""
    values = _at(theirs)
    return [
        f"{name} ({phase})"
        for name in NAMES_OF_CONVENTIONS
        for phase in PHASES
        if _at(expression(count(sizes, name, phase))) == values
    ]


# -- attention: the part that grows ----------------------------------------------------


def _changes(sizes: ModelSizes, theirs: Any, phase: str) -> Iterator[FormulaChange]:
    """Yield the steps from what is executed to the formula, attention first."""
    step = executed(sizes, phase)
    fixed = sum(x.get(TOKEN, 0) for x in step.values())
    growing = theirs - theirs.as_independent(N, as_Add=True)[0]
    index = step.get("index scores")
    ours = expression(summed([step.get("scores", {}), index or {}]))
    rest = theirs - growing
    if growing == 0 or not sizes.attention:
        if ours != growing:
            what = "left out" if growing == 0 else "counted where no layer has it"
            yield FormulaChange(NAMES["scores"], what, ours, growing)
    elif (reading := _best_reading(sizes, theirs, phase, fixed)) is None:
        yield FormulaChange(NAMES["scores"], "no known way to count attention", ours, growing)
    else:
        yield from _attention_changes(sizes, phase, reading)
        if index:
            none = sympy.Integer(0)
            yield FormulaChange(NAMES["index scores"], "left out", expression(index), none)
        rest = sympy.expand(theirs - mean_expression(attention_flops(sizes, phase, reading)))
    yield from _product_changes(sizes, fixed, rest, phase)


def _best_reading(
    sizes: ModelSizes, theirs: Any, phase: str, fixed: int
) -> AttentionReading | None:
    """Return the reading that grows as the formula does, with the fewest changes in all; or None.

    A reading with explained remaining products precedes any other.
    """
    values = _at(theirs)
    growth = tuple(x - values[0] for x in values[1:])
    best, fewest = None, (True, 99)
    for reading in attention_readings(sizes, phase):
        counted = attention_flops(sizes, phase, reading)
        first, *others = (mean_flops(counted, n) for n in _LENGTHS)
        if tuple(x - first for x in others) != growth:
            continue
        explanation = _explained(sizes, fixed, values[0] - first, phase)
        more = 0 if explanation is None else len(explanation[1])
        cost = explanation is None, reading.changes() + more
        if cost < fewest:
            best, fewest = reading, cost
    return best


def _attention_changes(
    sizes: ModelSizes, phase: str, reading: AttentionReading
) -> Iterator[FormulaChange]:
    done = AttentionReading()
    before = mean_expression(attention_flops(sizes, phase, done))
    for name, what in vars(reading).items():
        if what:
            done = replace(done, **{name: what})
            after = mean_expression(attention_flops(sizes, phase, done))
            difference = _in_symbols(after - before, sizes)
            text = f"{what}: {difference}" if difference else what
            yield FormulaChange(NAMES["scores"], text, before, after)
            before = after
    if not reading.changes():
        yield FormulaChange(NAMES["scores"], "the same", before, before)


def _in_symbols(difference: Any, sizes: ModelSizes) -> str:
    """Return FLOPs a token as text in L, h, d and N if all layers are alike, else ""."""
    shape = sizes.attention[0]
    alike = len(sizes.attention) == 1 and shape.layers == sizes.layers
    if not alike or shape.key_dim != shape.value_dim or shape.mask.kind != "causal":
        return ""
    unit = sizes.layers * shape.heads * shape.key_dim
    poly = sympy.Poly(sympy.expand(difference / unit), N)
    slope, offset = poly.coeff_monomial(N), poly.coeff_monomial(1)
    if slope.q != 1 or offset.q != 1:
        return ""
    terms = ((slope, "*N"), (offset, ""))
    return " ".join(f"{'-' if x < 0 else '+'} {abs(x)}*L*h*d{n}" for x, n in terms if x)


# -- products: the part that is the same at any N ----------------------------------------


def _product_changes(
    sizes: ModelSizes, ours: int, theirs: Any, phase: str
) -> Iterator[FormulaChange]:
    """Yield the steps from the FLOPs of our products to the formula's."""
    term, before, explanation = "products of parameters", sympy.Integer(ours), None
    if theirs == ours:
        yield FormulaChange(term, "the same", before, theirs)
        return
    if theirs.is_number:
        explanation = _explained(sizes, ours, Fraction(int(theirs.p), int(theirs.q)), phase)
    if explanation is None:
        yield FormulaChange(term, "no known choice of parameters", before, theirs)
        return
    usual, (factor, changes) = next(iter(_FACTORS[phase])), explanation
    for name, parameters in changes:
        after = before + usual * parameters
        verb = "counted as if multiplied" if parameters > 0 else "left out"
        yield FormulaChange(name, verb, before, after)
        before = after
    if factor != usual:
        yield FormulaChange(term, _FACTORS[phase][factor], before, before * factor / usual)


def _explained(
    sizes: ModelSizes, ours: int, theirs: Fraction, phase: str
) -> tuple[int, Sequence[tuple[str, int]]] | None:
    """Return the factor and the parameters, added or left out, that give ``theirs``; or None."""
    usual = next(iter(_FACTORS[phase]))
    tied = "embedding tables, beside the head that they are tied to"
    optional = {
        **{NAMES[role]: sizes.active(role) for role in OTHERS},
        "experts that a token does not meet": sizes.entries("expert") - sizes.active("expert"),
        tied: sizes.active("head") if sizes.tied else 0,
        **{NAMES[role]: -sizes.active(role) for role in (*MATRICES, "convolution")},
        NAMES["recurrent"]: -sum(x.products() for x in sizes.mixers),
    }
    choices = [(name, value) for name, value in optional.items() if value]
    vectors = [(name, value) for name, value in choices if value > 0]
    for size in range(len(choices) + 1):
        if size > max(_CHANGES, len(vectors)):
            return None
        for changes in combinations(choices if size <= _CHANGES else vectors, size):
            parameters = Fraction(ours, usual) + sum(x for _, x in changes)
            for factor in _FACTORS[phase]:
                if parameters * factor == theirs:
                    return factor, changes
    return None


# -- as records -----------------------------------------------------------------------


def _record(row: FormulaChange, n: int) -> FormulaTermRecord:
    def value(form: Any) -> int | float:
        number = evaluate(form, {"N": n})
        return number if isinstance(number, int) else float(number)

    return FormulaTermRecord(
        term=row.term, theirs=str(row.after), ours=str(row.before),
        difference=str(sympy.expand(row.after - row.before)), what=row.what, seq_len=n,
        theirs_value=value(row.after), ours_value=value(row.before),
    )  # fmt: skip


def _answer(
    records: Sequence[FormulaTermRecord], conventions: Sequence[str], phase: str, *, same: bool
) -> str:
    if same:
        return f"the formula is what a {phase} pass executes"
    names = " and ".join(conventions) or "no convention known here"
    whole = records[-1]
    ours, theirs = whole.ours_value or 0, whole.theirs_value or 0
    ratio = theirs / ours if ours else 0.0
    return (
        f"the formula counts {abs(ratio - 1):.1%} {'more' if ratio > 1 else 'less'} than is "
        f"executed at N = {whole.seq_len:,}; it is {names}"
    )
