"""Curves for figures: FLOPs by part and bytes of the cache over the length, by formulas."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from attnprof.models.model_forms import ModelForms
from attnprof.trace.sizes import evaluate

#: Lengths of a curve, and how far they go from the asked one.
_POINTS, _AROUND = 49, 64


def shares_of(
    forms: ModelForms | None, sizes: Mapping[str, int], counted: Mapping[str, int]
) -> dict[str, Any] | None:
    """Return FLOPs by part at lengths where the formulas hold; None if they have no N.

    ``counted`` are those of a run at the asked sizes.
    """
    if forms is None or not any("N" in shape for shape in forms.verified_at):
        return None

    def flops(sizes: Mapping[str, int]) -> Mapping[str, int]:
        by_part: Counter[str] = Counter()
        for (_, part), values in forms.parts.items():
            by_part[part] += evaluate(values.get("flops", 0), {**sizes, **forms.layers})
        return +by_part

    sizes, lengths = _lengths(forms.holds, sizes, met=flops(sizes) == +Counter(counted))
    at = [flops({**sizes, "N": n}) for n in lengths]
    parts = {part: [x.get(part, 0) for x in at] for part in dict.fromkeys(k for x in at for k in x)}
    curve = {"batch_size": sizes["B"], "seq_len": lengths, "parts": parts}
    return curve if len(lengths) > 1 and parts else None


def growth(
    expression: Any,
    holds: Callable[[Any], bool],
    sizes: Mapping[str, int],
    layers: Mapping[str, int],
    counted: int,
) -> dict[str, Any] | None:
    """Return bytes of the cache at lengths where its formula holds; None if there are none.

    ``counted`` are those of a run at the asked sizes.
    """
    if expression is None:
        return None
    met = evaluate(expression, {**sizes, **layers}) == counted
    sizes, lengths = _lengths(holds, sizes, met=met)
    held = [evaluate(expression, {**sizes, "N": n, **layers}) for n in lengths]
    curve = {"batch_size": sizes["B"], "seq_len": lengths, "bytes": held}
    return curve if len(lengths) > 1 and any(held) else None


def _lengths(
    holds: Callable[[Any], bool], sizes: Mapping[str, int], *, met: bool
) -> tuple[Mapping[str, int], list[int]]:
    """Return sizes, and lengths around the asked one at which formulas hold with them.

    Formulas that do not hold for one input are taken for two. ``met``: they give the numbers of a
    run of one input, too, which then is what the curve is for.
    """
    steps = (_AROUND ** (2 * i / (_POINTS - 1) - 1) for i in range(_POINTS))
    near = dict.fromkeys(max(1, round(sizes["N"] * step)) for step in steps)
    lengths = [n for n in near if holds({**sizes, "N": n})]
    if not lengths and sizes["B"] == 1:  # tensors of one row are another case to some operations
        two = {**sizes, "B": 2}
        return sizes if met else two, _lengths(holds, two, met=False)[1]
    return sizes, lengths
