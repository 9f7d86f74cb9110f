"""Curves of a derivation's formulas over the length, for the figure of its page.

A formula holds in a domain, so lengths outside of it are left out. Lengths are the asked one,
halved and doubled: where a block's length divides the asked one, it divides most of them. Where a
formula is that of a shorter last block, lengths just below are taken.
"""

from typing import Any

from attnprof.trace.report.derivation import Derivation, PhaseForms
from attnprof.trace.request.target import LARGE
from attnprof.trace.sizes import evaluate

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
                its = {"phase": phase, "quantity": quantity, "sizes": sizes}
                curves.append({**its, "seq_len": lengths, "value": values})
    return curves


def _sizes(derivation: Derivation, forms: PhaseForms) -> tuple[dict[str, int], list[int]]:
    """Return sizes of the symbols beside N, and lengths at which the formulas hold with them.

    They are those asked for, else usual ones, else those of a run that agreed with the formulas.
    """
    names = [name for name in derivation.symbols if name != "N"]
    middle = derivation.asked.get("N", MIDDLE)
    lengths = {int(middle * 2.0**n): None for n in range(-DOUBLINGS, DOUBLINGS + 1)}
    verified = forms.verified_at[-1] if forms.verified_at else {}
    usual = {**verified, **LARGE}
    for known in ({**usual, **derivation.asked}, usual, verified):
        sizes = {name: known[name] for name in names if name in known}
        if len(sizes) < len(names):
            continue
        near = (range(n, max(0, n - BELOW), -1) for n in lengths)
        held = (next((m for m in some if forms.holds({**sizes, "N": m})), None) for some in near)
        there = list(dict.fromkeys(n for n in held if n is not None))
        if len(there) > 1:
            return sizes, there
    return {}, []
