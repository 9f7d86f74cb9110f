"""The counts that document 002 prints for the Extractors: Tables 3 to 6, untouched.

Here ``n`` is the document's l (a training sequence) or t (the token decoded).
"""

from collections.abc import Callable

from attnprof.costs import Number, exact_div
from attnprof.mechanisms.standard import layer_count
from attnprof.published import Published

#: a printed form in n, d
_Form = Callable[[Number, Number], Number]
QUANTITIES = ("multiplications", "additions", "divisions", "exponentials", "parameters")


def _nothing(n: Number, d: Number) -> Number:
    return 0 * n * d


def _halves(form: _Form) -> _Form:
    """A form printed with halves, given doubled so that whole numbers stay exact."""
    return lambda n, d: exact_div(form(n, d), 2)


#: Tables 3 and 4: multiplications, additions, parameters of one sequence of length l
TRAINING: dict[str, tuple[str, _Form, _Form, _Form]] = {
    "she": (
        "002-T3",
        _halves(lambda n, d: n**2 * d**2 + 5 * n * d**2 + 2 * n * d),
        _halves(lambda n, d: n**2 * d**2 + 5 * n * d**2 - 6 * n * d),
        lambda n, d: n * d**2 + 2 * d**2,
    ),
    "he": (
        "002-T4",
        _halves(lambda n, d: n**2 * d + 3 * n * d + 6 * n * d**2),
        _halves(lambda n, d: 6 * n * d**2 + n**2 * d - 7 * n * d),
        lambda n, d: n * d + 3 * d**2,
    ),
    "we": (
        "002-T4",
        _halves(lambda n, d: n**2 * d + 3 * n * d + 4 * n * d**2),
        _halves(lambda n, d: 4 * n * d**2 + n**2 * d - 5 * n * d),
        lambda n, d: n * d + 2 * d**2,
    ),
    "me": (
        "002-T4",
        _halves(lambda n, d: n**2 * d + n * d),
        _halves(lambda n, d: n**2 * d - n * d),
        lambda n, _: n,
    ),
}
#: Tables 5 and 6: multiplications, additions of token number t
INFERENCE: dict[str, tuple[str, _Form, _Form]] = {
    "she": (
        "002-T5",
        lambda t, d: t * d**2 + 2 * d**2 + d,
        lambda t, d: t * d**2 + 2 * d**2 - 3 * d,
    ),
    "he": ("002-T6", lambda t, d: t * d + 3 * d**2 + d, lambda t, d: t * d + 3 * d**2 - 4 * d),
    "we": ("002-T6", lambda t, d: t * d + 2 * d**2 + d, lambda t, d: t * d + 2 * d**2 - 3 * d),
    "me": ("002-T6", lambda t, d: t * d, lambda t, d: t * d - d),
}


def published_counts(name: str) -> tuple[Published, ...]:
    """Every printed form of one Extractor, training and inference."""
    return (*_counts("forward", *TRAINING[name]), *_counts("decode", *INFERENCE[name]))


def _counts(phase: str, source: str, mult: _Form, add: _Form, *more: _Form) -> list[Published]:
    forms = (mult, add, _nothing, _nothing, *more)
    return [
        layer_count(source, quantity, phase, lambda n, d, _, form=form: form(n, d))  # type: ignore[misc]
        for quantity, form in zip(QUANTITIES, forms, strict=False)
    ]
