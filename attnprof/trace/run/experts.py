"""Even routing: sizes that depend on which experts tokens choose, if they choose them evenly.

In a routed run the places of the largest among real numbers (``topk``, ``argmax``, ``max``,
``sort``) are taken to be spread: row t chooses t·k, t·k + 1, … modulo the number of experts. Fake
tensors made of such places alone carry their values, so that numbers and sizes read from them are
known. Under symbolic sizes such a number of rows is a multiple of the rows of one expert.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from attnprof.costs import exact_div
from attnprof.trace.events import Size
from attnprof.trace.rules import name_of, tensors_in
from attnprof.trace.rules.workspaces import is_mask, rows_of, words
from attnprof.trace.sizes import expected_bytes, nbytes, size_of

#: Most entries of a tensor whose values are followed, and of one with places of keys that each
#: token selects: no model has as many experts as ``MOST_EXPERTS``.
MOST, MOST_SELECTED, MOST_EXPERTS = 2**26, 2**22, 2**12
#: Operations whose last result is a place among real numbers.
_CHOICES = ("topk", "argmax", "argmin", "max", "min", "sort")
#: Operations that make numbers or truth values out of nothing.
_MADE = frozenset({
    "arange", "zeros", "ones", "full", "eye", "scalar_tensor", "tril_indices", "triu_indices",
    "zeros_like", "ones_like", "new_zeros", "new_ones",
})  # fmt: skip
_SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool
#: Attributes of a fake tensor: its known values; that they are random ones from 0 to 1.
_KEY, _UNIT = "_attnprof_values", "_attnprof_unit"
#: Attribute of a tensor: the choice its rows are of.
_ROWS = "_attnprof_rows"


@dataclass(frozen=True)
class Route:
    """A choice: ``rows`` in all are spread over ``experts``; a token has ``each`` of the rows."""

    rows: Any
    experts: Any
    each: int = 1

    @property
    def sizes(self) -> tuple[Size, Size]:
        """Rows and experts, as ints or expressions."""
        return size_of(self.rows), size_of(self.experts)


@dataclass(frozen=True)
class _KnownValues:
    """The values of a fake tensor, and the choice that they were made of, if any."""

    values: Any
    route: Route | None


class Routing:
    """The values that a routed run knows; ``used`` are the choices that something depended on."""

    def __init__(self) -> None:
        self.used: list[Route] = []

    # -- before an operation ---------------------------------------------------------------
    def answered(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the fake result of an operation that depends on known values; else None."""
        answer = _ANSWERS.get(name_of(func).removeprefix("aten."))
        masks = [x for x in tensors_in(args) if is_mask(x)]
        deciding = masks if answer in (_indexed, _selected) else tensors_in((args, kwargs))
        values = [_values_of(x) for x in deciding]
        if not (answer and deciding) or None in values or not isinstance(deciding[0], FakeTensor):
            return None
        route = next((one.route for one in values if one and one.route), None)
        self.use(route)
        return answer(func, args, kwargs, lambda n: _as_rows(n, route))

    def use(self, route: Route | None) -> None:
        """Note that something depends on a choice."""
        if route is not None and all(route is not other for other in self.used):
            self.used.append(route)

    # -- after it --------------------------------------------------------------------------
    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """Follow values to the results of an operation, and spread a choice evenly.

        Returns the chosen indices and their route for a choice on real tensors, else None.
        """
        name = name_of(func).removeprefix("aten.")
        choice = spread(name, args, kwargs, out)
        if choice is None:
            _follow(name, func, args, kwargs, tensors_in(out))
            return None
        indices, route, values = choice
        setattr(indices, _ROWS, route)
        if not isinstance(indices, FakeTensor):
            return indices.copy_(values), route
        setattr(indices, _KEY, _KnownValues(values, route))
        return None


def _follow(name: str, func: Any, args: Any, kwargs: Any, results: list[Any]) -> None:
    """Attach values to results if the operands' values are known, or do not matter."""
    if not any(isinstance(x, FakeTensor) for x in results):
        return
    operands = tensors_in((args, kwargs))
    operand_values = [_values_of(x) for x in operands]
    if name == "rand":
        setattr(results[0], _UNIT, True)
    if name == "lt" and hasattr(args[0], _UNIT) and args[1] <= 0:  # as layers that are not dropped
        setattr(results[0], _KEY, _KnownValues(_blank("zeros", results[0]), None))
        return
    from_nothing = name.removesuffix("_") in _MADE
    follows = from_nothing or (operands and None not in operand_values)
    if follows and all(prod(map(_as_number, x.shape)) <= MOST for x in results):
        unknown = None in operand_values
        values = _blank(name, results[0]) if unknown else _computed(func, args, kwargs)
        route = next((one.route for one in operand_values if one and one.route), None)
        for result, value in zip(results, tensors_in(values), strict=True):
            setattr(result, _KEY, _KnownValues(value, route))
    elif name.endswith("_") and operands and hasattr(operands[0], _KEY):
        delattr(operands[0], _KEY)


def _values_of(tensor: Any) -> _KnownValues | None:
    if not isinstance(tensor, FakeTensor):
        return _KnownValues(tensor, None)
    if tensor.constant is not None:
        return _KnownValues(tensor.constant, None)
    return getattr(tensor, _KEY, None)


def _as_number(size: Any) -> Any:
    """Return a size as the number that it is in this run."""
    return size.node.hint if isinstance(size, _SYMBOLIC) else size


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """Return an operation's result for known values and numbers as sizes."""
    plain = tree_map_only(torch.Tensor, lambda x: _values_of(x).values, (args, kwargs))  # type: ignore[union-attr]
    args, kwargs = tree_map_only(_SYMBOLIC, _as_number, plain)
    with unset_fake_temporarily(), torch.no_grad():
        return func(*args, **kwargs)


def _blank(name: str, out: Any) -> Any:
    with unset_fake_temporarily():
        fill = torch.ones if name.removeprefix("new_").startswith("ones") else torch.zeros
        return fill([_as_number(n) for n in out.shape], dtype=out.dtype)


def _choice_dim(name: str, args: Any, kwargs: Any) -> int | None:
    """Return the dimension along which an operation chooses among real numbers, or None."""
    if name not in _CHOICES or not args[0].is_floating_point() or not args[0].dim():
        return None
    place = 2 if name == "topk" else 1
    default = -1 if name in ("topk", "sort") else None
    dim = kwargs.get("dim", args[place] if len(args) > place else default)
    return dim % args[0].dim() if isinstance(dim, int) else None


def spread(name: str, args: Any, kwargs: Any, out: Any) -> tuple[Any, Route, Any] | None:
    """Return the indices of a choice, its route, and values that spread it evenly; else None."""
    dim, results = _choice_dim(name, args, kwargs), tensors_in(out)
    if dim is None or (not name.startswith("arg") and len(results) != 2):
        return None
    scores, indices = args[0], results[-1]
    experts, shape = scores.shape[dim], list(map(_as_number, indices.shape))
    keeps_dim = indices.dim() == scores.dim()
    each = shape.pop(dim) if keeps_dim else 1
    selects_keys = _as_number(experts) > MOST_EXPERTS
    if prod(shape) * each > (MOST_SELECTED if selects_keys else MOST):
        return None
    with unset_fake_temporarily():
        steps = torch.arange(prod(shape)).view(shape) * (1 if name == "sort" else each)
        rows = (steps.unsqueeze(-1) + torch.arange(each)) % _as_number(experts)
        values = rows.movedim(-1, dim) if keeps_dim else rows.squeeze(-1)
    return indices, Route(prod(indices.shape), experts, each), values.contiguous()


def _as_rows(number: int, route: Route | None) -> Any:
    """Return a number as an expression if it is a multiple of an expert's rows; else as it is."""
    if route is None or not isinstance(route.rows, torch.SymInt) or isinstance(number, bool):
        return number
    rows, experts = _as_number(route.rows), _as_number(route.experts)
    each = rows // experts
    if number == experts:
        return route.experts
    if number == rows:  # of all experts: no quotient that torch would compare with the rows
        return route.rows
    if rows % experts or number <= experts or number % each:
        return number
    if route.rows % route.experts == 0:  # a condition from here on
        return route.rows // route.experts * (number // each)
    return number


# -- results that known values decide, or whose sizes they decide ----------------------------
Name = Callable[[int], Any]


def _number_of(func: Any, args: Any, kwargs: Any, name: Name) -> Any:
    value = _computed(func, args, kwargs)
    return name(value) if type(value) is int else value


def _shaped(func: Any, args: Any, kwargs: Any, name: Name) -> Any:
    """Return results of the shapes that they have at the known values."""
    values = _computed(func, args, kwargs)
    out = tuple(args[0].new_empty([name(n) for n in x.shape], dtype=x.dtype)
                for x in tensors_in(values))  # fmt: skip
    return out if isinstance(values, tuple) else out[0]


def _true_positions(mask: Any, name: Name) -> Any:
    """Return the positions (count, dims) at which a mask of known values is True."""
    values = _computed(torch.ops.aten.nonzero.default, (mask,), {})
    count = name(len(values))
    positions = mask.new_empty_strided((count, mask.dim()), (1, count), dtype=torch.int64)
    setattr(positions, _KEY, _KnownValues(values, None))
    return positions


def _selected(_func: Any, args: Any, _kwargs: Any, name: Name) -> Any:
    shape = list(map(_as_number, torch.broadcast_shapes(*(x.shape for x in args))))  # type: ignore[no-untyped-call]
    with unset_fake_temporarily():
        count = int(_values_of(args[1]).values.expand(shape).count_nonzero())  # type: ignore[union-attr]
    return args[0].new_empty((name(count),))


def _indexed(func: Any, args: Any, kwargs: Any, name: Name) -> Any:
    """Return the result of ``index`` with indices in place of masks."""
    indices: list[Any] = []
    for index in args[1]:
        picks = index is not None and is_mask(index)
        indices += _true_positions(index, name).unbind(1) if picks else [index]
    return func(args[0], indices, *args[2:], **kwargs)


_ANSWERS: dict[str, Callable[..., Any]] = {
    "_local_scalar_dense": _number_of, "equal": _number_of,
    "nonzero": lambda _func, args, _kwargs, name: _true_positions(args[0], name),
    "masked_select": _selected, "index": _indexed,
    **dict.fromkeys(("bincount", "_unique2", "unique_dim", "unique_consecutive",
                     "repeat_interleave"), _shaped),
}  # fmt: skip


@contextmanager
def as_with_values(routing: Routing | None) -> Iterator[None]:
    """Make ``one_hot`` and ``tolist`` inside use known values, as torch does on real tensors."""
    as_list = FakeTensor.tolist

    def tolist(tensor: Any) -> Any:
        values = _values_of(tensor)
        if values is None or routing is None:
            return as_list(tensor)
        routing.use(values.route)
        with unset_fake_temporarily():  # torch runs no operation for it
            numbers = values.values.tolist()
        return tree_map_only(int, lambda n: _as_rows(n, values.route), numbers)

    hot = patch.object(torch.nn.functional, "one_hot", _one_hot())
    with hot, patch.object(FakeTensor, "tolist", tolist):
        yield


def _checked_classes(ids: Any, classes: Any) -> Iterator[int]:
    """Yield the least and the largest class, which torch reads; 0 where it is not known."""
    together = torch.__version__ >= "2.13"
    for value in ids.aminmax() if together else (ask() for ask in (ids.min, ids.max)):
        if classes != -1 and _values_of(value) is None:
            value.item_memo = 0
        end = int(value.item())
        del value  # torch lets go of the least before it asks for the largest
        yield end


@cache
def _one_hot() -> Callable[..., Any]:
    plain = torch.nn.functional.one_hot

    def one_hot(ids: Any, num_classes: int = -1) -> Any:
        if not isinstance(ids, FakeTensor):
            return plain(ids, num_classes)
        least, most = _checked_classes(ids, num_classes)
        classes = most + 1 if num_classes == -1 else num_classes
        if least < 0 or most >= classes:
            raise RuntimeError("Class values must be smaller than num_classes.")  # torch's words
        rows = torch.zeros((*ids.shape, classes), dtype=torch.int64, device=ids.device)
        return rows.scatter_(-1, ids.unsqueeze(-1), 1)

    return one_hot


# -- rows of one expert, followed from the choice to the products that read its weights ------
# A loop over experts multiplies the rows of each by weights of its own. Under even routing few rows
# are spread over as many experts as they can meet, while random choices meet some of them twice:
# of 8 experts 2 rows that choose 2 each meet 8·(1 - (6/8)²) = 3.5, not 4. So tensors made of chosen
# places are marked with the choice, by which ``Choices.unread`` knows what a product leaves unread.
#: Operations that give some rows of their operand, or rows that an operand of indices picks.
_PICKS = words("""
    index index_select embedding gather masked_select split split_with_sizes unbind slice select
    narrow tensor_split chunk
""")
_TURNS = words("t transpose permute")


def _follow_rows(name: str, operands: list[Any], results: list[Any]) -> None:
    """Mark results that are made of a router's indices, or of rows that they picked."""
    marked = [x for x in operands if hasattr(x, _ROWS)]
    if not marked:
        return
    route = getattr(marked[0], _ROWS)
    rows = {_as_number(x.shape[0]) for x in marked if x.dim()}
    for result in results:
        picked = name in _PICKS or (result.dim() > 0 and _as_number(result.shape[0]) in rows)
        picked = picked and not _turned(name, marked[0], result)
        is_new = all(result is not x for x in operands)
        if not result.is_floating_point() or (picked and is_new):
            setattr(result, _ROWS, route)


def _turned(name: str, rows: Any, result: Any) -> bool:
    """Return whether a result's first dimension is not that of its rows, as in gradients."""
    strides = (_as_number(x.stride(0)) for x in (rows, result) if x.dim())
    return name in _TURNS and len({*strides}) > 1


# -- how many experts each token chooses -------------------------------------------------
class Choices:
    """The number of rows that last chose among each number of experts, and ``notes`` on them.

    In a ``routed`` run the rows of an expert are followed to the products that read its weights.
    """

    def __init__(self, *, routed: bool) -> None:
        self._routed = routed
        self._rows: dict[Size, Size] = {}
        self.notes: list[str] = []

    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Remember how many rows chose, if this operation chooses, and follow them."""
        name = name_of(func).removeprefix("aten.")
        if self._routed:
            _follow_rows(name, tensors_in((args, kwargs)), tensors_in(out))
        if (dim := _choice_dim(name, args, kwargs)) is not None:
            self._rows[size_of(args[0].shape[dim])] = rows_of(args[0], dim)

    def each(self, experts: Size, choices: Size) -> int:
        """Return how many experts each row has chosen, if all rows together chose ``choices``.

        1 if that is not known: each place is then taken for another row. A note says which bytes
        are read.
        """
        import sympy

        number = sympy.sympify(choices) / self._rows.get(experts, choices)
        each = int(number) if number.is_Integer else 1
        self._note(experts, each)
        return each

    def unread(self, rows: Any, weights: Any) -> Size:
        """Return the bytes of an expert's weights that its rows' product leaves unread on average.

        Products whose rows are not the share of one expert leave no bytes unread.
        """
        route: Route | None = getattr(rows, _ROWS, None)
        experts = size_of(route.experts) if route and rows.dim() else None
        if route is None or not isinstance(experts, int):
            return 0
        number = _as_number(route.rows)
        if _as_number(rows.shape[0]) not in (number // experts, -(-number // experts)):
            return 0
        self._note(experts, route.each)
        tokens = exact_div(size_of(route.rows), route.each)
        met, whole = min(number, experts), nbytes(weights)
        if met == experts:
            return whole - expected_bytes(whole, experts, route.each, tokens)
        # each expert that is met stands for some of those that are not
        return whole - -(-expected_bytes(whole * experts, experts, route.each, tokens) // met)

    def _note(self, experts: Size, each: int) -> None:
        note = (
            f"of {experts} experts only the weights are read that rows meet, on average "
            f"{experts}*(1 - (1 - {each}/{experts})**rows) if each row chooses {each} evenly"
        )
        if note not in self.notes:
            self.notes.append(note)
