"""What a hand-written formula for a model's FLOPs a token gets wrong, term by term.

The formula's part that grows with N is attention, the rest are products of parameters. Each is
looked for among readings of ours that somebody may have meant: another mask, no recomputation, key
heads for query heads; embeddings in, routers out, all experts. The reading with the fewest changes
is told change by change, with the FLOPs of each, so that these add up to the difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.conventions import (
    EXECUTED,
    MATRICES,
    NAMES,
    NAMES_OF_CONVENTIONS,
    PHASES,
    TOKEN,
    ModelSizes,
    count,
    executed,
    expression,
    summed,
)
from attnprof.record import FormulaTermRecord, Report
from attnprof.trace.sizes import evaluate
from attnprof.verify.attention_readings import (
    AttentionReading,
    attention_flops,
    attention_readings,
    mean_expression,
    mean_flops,
)
from attnprof.verify.printed import check_names, names_in, read_formula

#: Lengths at which readings are compared: none is special to a mask of usual sizes.
_LENGTHS = (1, 3, 61, 1009, 5003, 70001, 1000003)
#: The most changes that are tried to explain products.
_CHANGES = 4
#: FLOPs for each parameter that somebody may have meant, and what it then is.
_FACTORS = {
    "train": {6: "", 2: "forward pass alone (2x)", 4: "backward pass alone (4x)",
              8: "with a second forward pass (8x)"},
    "forward": {2: "", 1: "multiply-adds (1x)", 6: "with the backward pass (6x)"},
}  # fmt: skip

Values = tuple[Fraction, ...]


@dataclass(frozen=True)
class FormulaChange:
    """A step from ours to theirs: what it is, and FLOPs a token before and after it at N."""

    term: str
    what: str
    before: Any
    after: Any


def model_formula_report(
    sizes: ModelSizes, text: str, phase: str, n: int, where: Mapping[str, str] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Report:  # fmt: skip
    """Return a record a term in which a formula differs from what is executed, then both sums.

    ``text`` has the symbols of ``sizes`` and N; ``where`` says what others stand for. The summary
    has the convention that the formula is, if it is one. Raises :class:`RequestError` for text that
    is no formula, or has other names.
    """
    theirs, notes = _read(sizes, text, where or {})
    ours = expression(count(sizes, EXECUTED, phase))
    rows = list(_changes(sizes, theirs, phase))
    records = [_record(row, n) for row in rows]
    records.append(_record(FormulaChange("all", "", ours, theirs), n))
    named = _conventions(sizes, theirs)
    same = _at(theirs) == _at(ours)
    summary = {
        "name": sizes.name, "formula": text, "phase": phase, "seq_len": n, "match": same,
        "conventions": named, "symbols": {x: sizes.symbols[x] for x in _used(text, sizes)},
        "answer": _answer(records, named, phase, same=same), "notes": [*sizes.notes, *notes],
    }  # fmt: skip
    return Report("verify-formula --model", records, summary, environment or {})


def _read(sizes: ModelSizes, text: str, where: Mapping[str, str]) -> tuple[Any, list[str]]:
    """Return a formula as an expression in N alone, FLOPs a token."""
    import sympy

    from attnprof.algebra.expressions import symbol

    numbers = {name: sympy.Integer(value) for name, value in sizes.symbols.items()}
    meanings = {name: read_formula(meaning, numbers) for name, meaning in where.items()}
    check_names(read_formula(text, meanings), [*sizes.symbols, "N"], text)
    theirs = sympy.expand(read_formula(text, {**numbers, **meanings}))
    n = symbol("N")
    if names_in(theirs) - {"N"}:
        raise RequestError(f"formula '{text}' is not in N alone; known are {', '.join(numbers)}")
    if theirs.is_polynomial(n) and sympy.degree(theirs, n) == 2 and not theirs.subs(n, 0):
        note = "the formula is of a whole sequence: it is divided by N"
        return sympy.expand(theirs / n), [note]
    return theirs, []


def _used(text: str, sizes: ModelSizes) -> list[str]:
    return sorted(names_in(read_formula(text)) & {*sizes.symbols})


def _at(value: Any) -> Values:
    """Return an expression's values at the lengths of comparison."""
    return tuple(Fraction(evaluate(value, {"N": n})) for n in _LENGTHS)


def _minus(one: Values, other: Values) -> Values:
    return tuple(x - y for x, y in zip(one, other, strict=True))


def _conventions(sizes: ModelSizes, theirs: Any) -> list[str]:
    """Return the conventions, with their phases, whose count the formula is."""
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
    import sympy

    from attnprof.algebra.expressions import symbol

    step = executed(sizes, phase)
    fixed = sum(x.get(TOKEN, 0) for x in step.values())
    growing = theirs - theirs.as_independent(symbol("N"), as_Add=True)[0]
    index = step.get("index scores")
    ours = expression(summed([step.get("scores", {}), index or {}]))
    if growing == 0 or not sizes.attention:
        if ours != growing:
            what = "left out" if growing == 0 else "counted where no layer has it"
            yield FormulaChange(NAMES["scores"], what, ours, growing)
        yield from _product_changes(sizes, fixed, theirs - growing, phase)
        return
    reading = _best_reading(sizes, theirs, phase, fixed)
    if reading is None:
        yield FormulaChange(NAMES["scores"], "no known way to count attention", ours, growing)
        yield from _product_changes(sizes, fixed, theirs - growing, phase)
        return
    yield from _attention_changes(sizes, phase, reading)
    if index:
        yield FormulaChange(NAMES["index scores"], "left out", expression(index), sympy.Integer(0))
    rest = sympy.expand(theirs - mean_expression(attention_flops(sizes, phase, reading)))
    yield from _product_changes(sizes, fixed, rest, phase)


def _best_reading(
    sizes: ModelSizes, theirs: Any, phase: str, fixed: int
) -> AttentionReading | None:
    """Return the reading that grows as the formula does, with the fewest changes in all.

    One that leaves products which can be explained comes before others. None if none grows so.
    """
    values = _at(theirs)
    apart = tuple(x - values[0] for x in values[1:])
    best, fewest = None, (True, 99)
    for reading in attention_readings(sizes, phase):
        counted = attention_flops(sizes, phase, reading)
        first, *others = (mean_flops(counted, n) for n in _LENGTHS)
        if tuple(x - first for x in others) != apart:
            continue
        explanation = _explained(sizes, fixed, values[0] - first, phase)
        cost = (
            explanation is None,
            reading.changes() + (0 if explanation is None else len(explanation[1])),
        )
        if cost < fewest:
            best, fewest = reading, cost
    return best


def _attention_changes(
    sizes: ModelSizes, phase: str, reading: AttentionReading
) -> Iterator[FormulaChange]:
    done, before = (
        AttentionReading(),
        mean_expression(attention_flops(sizes, phase, AttentionReading())),
    )
    for name, what in vars(reading).items():
        if what:
            done = replace(done, **{name: what})
            after = mean_expression(attention_flops(sizes, phase, done))
            difference = _in_symbols(after - before, sizes)
            yield FormulaChange(
                NAMES["scores"], what + (difference and f": {difference}"), before, after
            )
            before = after
    if not reading.changes():
        yield FormulaChange(NAMES["scores"], "the same", before, before)


def _in_symbols(apart: Any, sizes: ModelSizes) -> str:
    """Return FLOPs a token in L, h, d and N where all layers are alike; else ""."""
    import sympy

    from attnprof.algebra.expressions import symbol

    shape = sizes.attention[0]
    alike = len(sizes.attention) == 1 and shape.layers == sizes.layers
    if not alike or shape.key_dim != shape.value_dim or shape.mask.kind != "causal":
        return ""
    unit = sizes.layers * shape.heads * shape.key_dim
    poly = sympy.Poly(sympy.expand(apart / unit), symbol("N"))
    slope, offset = poly.coeff_monomial(symbol("N")), poly.coeff_monomial(1)
    if slope.q != 1 or offset.q != 1:
        return ""
    terms = ((slope, "*N"), (offset, ""))
    return " ".join(f"{'-' if x < 0 else '+'} {abs(x)}*L*h*d{n}" for x, n in terms if x)


# -- products: the part that is the same at any N ----------------------------------------


def _product_changes(
    sizes: ModelSizes, ours: int, theirs: Any, phase: str
) -> Iterator[FormulaChange]:
    """Yield the steps from the FLOPs of our products to theirs."""
    import sympy

    term, integer = "products of parameters", sympy.Integer
    if theirs == ours:
        yield FormulaChange(term, "the same", integer(ours), theirs)
        return
    if theirs.is_number:
        explanation = _explained(sizes, ours, Fraction(int(theirs.p), int(theirs.q)), phase)
        if explanation is not None:
            usual, (factor, added) = next(iter(_FACTORS[phase])), explanation
            before = integer(ours)
            for name, parameters in added:
                after = before + usual * parameters
                verb = "counted as if multiplied" if parameters > 0 else "left out"
                yield FormulaChange(name, verb, before, after)
                before = after
            if factor != usual:
                yield FormulaChange(term, _FACTORS[phase][factor], before, before * factor / usual)
            return
    yield FormulaChange(term, "no known choice of parameters", integer(ours), theirs)


def _explained(
    sizes: ModelSizes, ours: int, theirs: Fraction, phase: str
) -> tuple[int, Sequence[tuple[str, int]]] | None:
    """Return the factor and the parameters, added or left out, that make the formula's number."""
    usual = next(iter(_FACTORS[phase]))
    optional = dict[str, int]()
    for role in ("embedding", "norm", "latent norm", "bias", "vector"):
        optional[NAMES[role]] = sizes.active(role)
    unmet = sizes.entries("expert") - sizes.active("expert")
    optional["experts that a token does not meet"] = unmet
    if sizes.tied:
        optional["embedding tables, beside the head that they are tied to"] = sizes.active("head")
    for role in (*MATRICES, "convolution"):
        optional[f"{NAMES[role]}"] = -sizes.active(role)
    state = sum(x.products() for x in sizes.mixers)
    optional[NAMES["recurrent"]] = -state
    choices = [(name, value) for name, value in optional.items() if value]
    vectors = [(name, value) for name, value in choices if value > 0]
    for size in range(len(choices) + 1):
        if size > max(_CHANGES, len(vectors)):
            return None
        sets = combinations(choices, size) if size <= _CHANGES else combinations(vectors, size)
        for added in sets:
            parameters = Fraction(ours, usual) + sum(x for _, x in added)
            for factor in _FACTORS[phase]:
                if parameters * factor == theirs:
                    return factor, added
    return None


# -- as records -----------------------------------------------------------------------


def _record(row: FormulaChange, n: int) -> FormulaTermRecord:
    import sympy

    value = partial(_value, n=n)
    return FormulaTermRecord(
        term=row.term, theirs=str(row.after), ours=str(row.before),
        difference=str(sympy.expand(row.after - row.before)), what=row.what, seq_len=n,
        theirs_value=value(row.after), ours_value=value(row.before),
    )  # fmt: skip


def _value(item: Any, n: int) -> int | float:
    value = evaluate(item, {"N": n})
    return value if isinstance(value, int) else float(value)


def _answer(
    records: Sequence[FormulaTermRecord], named: Sequence[str], phase: str, *, same: bool
) -> str:
    is_one = f"; it is {' and '.join(named)}" if named else "; it is no convention known here"
    if same:
        return f"the formula is what a {phase} pass executes"
    whole = records[-1]
    ours, theirs = whole.ours_value or 0, whole.theirs_value or 0
    ratio = theirs / ours if ours else 0.0
    return (
        f"the formula counts {abs(ratio - 1):.1%} {'more' if ratio > 1 else 'less'} than is "
        f"executed at N = {whole.seq_len:,}{is_one}"
    )
