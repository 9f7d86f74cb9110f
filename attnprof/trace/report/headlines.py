"""Sentences about formulas: how costs grow with the length N, and up to which length that is known.

"FLOPs grow with N**2, about 4*B*N**2*h*d for long inputs": only if the formulas hold for all long
inputs; else the sentence says up to which N. A total that leaves something out is "at least".
"""

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from attnprof.algebra.orders import leading_terms, total
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import LARGE
from attnprof.trace.sizes import evaluate

#: Operations in a formula beyond which it takes too long to find how it grows.
LONG = 300
#: Conditions that bound the lengths of a domain from above, and from below.
_ENDS = re.compile(r"N (<=|<|=) (.+)|(.+) (>=|>) N")
_BEGINS = re.compile(r"(?:\w+, )*N(?:, \w+)* (>=|>|=) (\d+)|(\d+) (<=|<) N")
#: A quantity's name, its verbs, and its unit, for sentences.
_FLOPS = "FLOPs", "grow", "do", "are", ""
_MEMORY = "peak memory", "grows", "does", "is", " bytes"


def answer(
    forms: PhaseForms, domain: Sequence[str] = (), floors: Container[str] = (),
    shape: Mapping[str, int] | None = None,
) -> str:  # fmt: skip
    """Return how FLOPs and peak memory grow with the length N; empty if unknown.

    ``domain`` is where the formulas hold, ``floors`` are quantities that leave something out;
    ``shape`` has the other sizes at which sides of a maximum are compared.
    """
    ends = ends_of(domain)
    if any(condition.startswith("N = ") for condition in ends):
        return ""
    longest = lengths_of(domain)[1]
    sizes = defaultdict(lambda: 100, {**LARGE, **(shape or {}), "N": longest}) if ends else None
    quantities = {"flops": _FLOPS, "peak_bytes": _MEMORY}
    sentences = [
        _growth(forms.formulas[name].expression, words, sizes, floor=name in floors)
        for name, words in quantities.items()
    ]
    sentence = "; ".join(filter(None, sentences))
    return f"Where {' and '.join(ends)}, {sentence}" if ends and sentence else sentence


def _growth(
    expression: Any, words: tuple[str, ...], sizes: Mapping[str, Any] | None, *, floor: bool
) -> str:
    """Return how one quantity grows, for all long inputs or up to the N of ``sizes``."""
    import sympy

    what, grows, does, are, unit = words
    expression = _side(expression, sizes)
    if expression is None or sympy.count_ops(expression) > LONG:
        return ""
    terms = leading_terms(expression, ["N"])
    about = sympy.expand(total(terms or ()))
    if terms is None and isinstance(expression, sympy.Max):  # no side wins: it grows as their sum
        terms = leading_terms(sympy.Add(*expression.args), ["N"])
    if terms is None or not about.free_symbols <= getattr(expression, "free_symbols", set()):
        return ""
    order = total(terms, factors=False)
    if not order.free_symbols:
        least = f"{what} {are} at least an amount that does not depend on N"
        return least if floor else f"{what} {does} not depend on N"
    least = "at least " * floor
    where = "for long inputs" if sizes is None else f"at N = {sizes['N']}"
    known = about and (sizes is None or _is_close(about, expression, sizes))
    amount = f", {least}about {about}{unit} {where}" if known else ""
    return f"{what} {grows} {least}with {order}{amount}"


def _side(expression: Any, sizes: Mapping[str, Any] | None) -> Any:
    """Return the case of a formula, or the side of its maximum, that holds at the longest N."""
    import sympy

    if isinstance(expression, sympy.Piecewise) and sizes is None:
        *few, last = expression.args
        plain = all(str(getattr(holds, "lts", "")) == "N" for _, holds in few)
        return last[0] if plain else expression
    if sizes is None or sizes["N"] == inf:
        return expression
    if isinstance(expression, sympy.Max):
        return max(expression.args, key=lambda side: evaluate(side, sizes))
    if isinstance(expression, sympy.Piecewise):
        at = {name: sympy.Integer(sizes[str(name)]) for name in expression.free_symbols}
        return next((x for x, holds in expression.args if holds.subs(at) is sympy.true), None)
    return expression


def _is_close(about: Any, expression: Any, sizes: Mapping[str, Any]) -> bool:
    """Return whether the leading terms are a formula's value up to a quarter."""
    if sizes["N"] == inf:
        return False
    value = evaluate(expression, sizes)
    return bool(abs(evaluate(about, sizes) - value) <= value / 4)


def apart(forms: PhaseForms, phases: Iterable[PhaseForms]) -> Iterator[str]:
    """Yield a note for every other phase whose formulas hold at none of the same lengths."""
    first, last = lengths_of(forms.domain)
    for other in phases:
        low, high = lengths_of(other.domain)
        if max(first, low) > min(last, high):
            yield (
                f"this holds for {_span(forms)}, the formulas of {other.phase} for {_span(other)}: "
                "no length has both, as the code does something else beyond each and runs of the "
                f"one phase say nothing of the other; --phase {forms.phase} --at N=... asks for "
                "this one at another length"
            )


def _span(forms: PhaseForms) -> str:
    """Return the conditions of a phase on the length, as text."""
    of_length = (x for x in forms.domain if _ENDS.fullmatch(x) or _BEGINS.fullmatch(x))
    return "; ".join(of_length)


def ends_of(domain: Iterable[str]) -> list[str]:
    """Return conditions that bound N from above; of those that are numbers, the smallest."""
    ends = [condition for condition in domain if _ENDS.fullmatch(condition)]
    return [end for end in ends if lengths_of([end])[1] in (inf, lengths_of(ends)[1])]


def lengths_of(domain: Iterable[str]) -> tuple[Any, Any]:
    """Return the shortest and the longest N of a domain, as far as its conditions are numbers."""
    first: Any = 1
    last: Any = inf
    for condition in domain:
        if match := _ENDS.fullmatch(condition):
            sign, number = match[1] or match[4], match[2] or match[3]
            if number.isdigit():
                last = min(last, int(number) - (sign in "<>"))
        if match := _BEGINS.fullmatch(condition):
            sign, number = match[1] or match[4], match[2] or match[3]
            first = max(first, int(number) + (sign in "<>"))
    return first, last
