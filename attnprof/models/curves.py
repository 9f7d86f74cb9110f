"""What a model costs over its length, by the formulas that it has, as a figure takes it."""

from collections.abc import Callable, Mapping
from typing import Any

from attnprof.models.model_forms import ModelForms
from attnprof.trace.sizes import evaluate

#: Lengths of a curve, and how far they go from the asked one.
_POINTS, _AROUND = 49, 64


def shares_of(forms: ModelForms | None, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """FLOPs by part at lengths where the formulas hold; None where they have no length."""
    if forms is None or not any("N" in shape for shape in forms.verified_at):
        return None
    sizes, lengths = _lengths(forms.holds, sizes)
    parts = dict[str, list[Any]]()
    for (_, part), values in forms.parts.items():
        own = [evaluate(values.get("flops", 0), _at(sizes, n, forms.layers)) for n in lengths]
        before = parts.get(part, [0] * len(lengths))
        parts[part] = [x + y for x, y in zip(before, own, strict=True)]
    parts = {part: values for part, values in parts.items() if any(values)}
    found = {"batch_size": sizes["B"], "seq_len": lengths, "parts": parts}
    return found if len(lengths) > 1 and parts else None


def growth(
    expression: Any,
    holds: Callable[[Any], bool],
    sizes: Mapping[str, int],
    layers: Mapping[str, int],
) -> dict[str, Any] | None:
    """Bytes of the cache at lengths where its formula holds; None where there are none."""
    if expression is None:
        return None
    sizes, lengths = _lengths(holds, sizes)
    held = [evaluate(expression, _at(sizes, n, layers)) for n in lengths]
    found = {"batch_size": sizes["B"], "seq_len": lengths, "bytes": held}
    return found if len(lengths) > 1 and any(held) else None


def _lengths(
    holds: Callable[[Any], bool], sizes: Mapping[str, int]
) -> tuple[Mapping[str, int], list[int]]:
    """Around the asked length, those where formulas hold; of two inputs if not of one."""
    steps = (_AROUND ** (2 * i / (_POINTS - 1) - 1) for i in range(_POINTS))
    near = dict.fromkeys(max(1, round(sizes["N"] * step)) for step in steps)
    found = [n for n in near if holds({**sizes, "N": n})]
    if not found and sizes["B"] == 1:  # tensors of one row are another case to some operations
        return _lengths(holds, {**sizes, "B": 2})
    return sizes, found


def _at(sizes: Mapping[str, int], tokens: int, layers: Mapping[str, int]) -> dict[str, int]:
    return {**sizes, "N": tokens, **layers}
