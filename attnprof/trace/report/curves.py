"""Curves of a derivation's formulas over the length, for the figure of its page.

A formula holds in a domain, so lengths outside of it are left out. Lengths are the asked one,
halved and doubled: a block length that divides the asked one divides most of them. A formula for a
shorter last block does not hold at whole blocks, so lengths just below are taken for it.
"""

from typing import Any

from attnprof.algebra.values import evaluate
from attnprof.trace.report.derivation import Derivation, PhaseForms
from attnprof.trace.request.target import LARGE

#: Quantities that are drawn, in this order.
DRAWN = ("flops", "bytes_moved", "peak_bytes")
#: The length in the middle if none is asked for, and how often it is halved and doubled.
MIDDLE, DOUBLINGS = 4096, 6
#: How far below a length one is looked for at which a formula holds.
BELOW = 8


def curves_of(derivation: Derivation) -> list[dict[str, Any]]:
    """Return a curve over N for each phase and drawn quantity that has a formula."""
    curves = []
    for phase, forms in derivation.phases.items() if "N" in derivation.symbols else ():
        sizes, lengths = _sizes(derivation, forms)
        for quantity in DRAWN if len(lengths) > 1 else ():
            expression = forms.formulas[quantity].expression
            if expression is not None:
                values = [float(evaluate(expression, {**sizes, "N": n})) for n in lengths]
                curve = {"phase": phase, "quantity": quantity, "sizes": sizes}
                curves.append({**curve, "seq_len": lengths, "value": values})
    return curves


def _sizes(derivation: Derivation, forms: PhaseForms) -> tuple[dict[str, int], list[int]]:
    """Return sizes for the symbols other than N, and lengths at which the formulas hold with them.

    The sizes are the asked ones, else usual ones, else the sizes of a run that agreed.
    """
    names = [name for name in derivation.symbols if name != "N"]
    middle = derivation.asked.get("N", MIDDLE)
    lengths = {int(middle * 2.0**n): None for n in range(-DOUBLINGS, DOUBLINGS + 1)}
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
