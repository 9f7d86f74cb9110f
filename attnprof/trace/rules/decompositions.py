"""Rules for triangular solves and decompositions of square matrices, by textbook algorithms.

A solve of n unknowns for a column is n(n-1)/2 multiplications and additions, and n divisions; a
Cholesky or LU decomposition subtracts products step by step. LAPACK's blocks do the same sums.
"""

from typing import Any

from attnprof.costs import exact_div, minimum
from attnprof.trace.events import Size
from attnprof.trace.rules.table import OperationRule, first_of, rules
from attnprof.trace.rules.units import NOTHING, OTHER, A, Counts, D, M
from attnprof.trace.rules.workspaces import is_contiguous, workspaces
from attnprof.trace.sizes import nbytes, numel, product, size_of


def _batch(a: Any) -> Size:
    return product(a.shape[:-2])


def _solves(n: Size, columns: Size, *, divided: bool = True) -> Counts:
    """Count triangular solves of n unknowns for a number of columns."""
    return ((M + A) * exact_div(n * (n - 1), 2) + D * n * divided) * columns


def _cholesky(n: Size) -> Counts:
    """Count a decomposition column by column: subtract earlier columns, take a root, divide."""
    each = exact_div(n * (n - 1) * (n + 1), 6)
    return (M + A) * each + D * exact_div(n * (n - 1), 2) + OTHER * n


def _lu(rows: Size, columns: Size, *, pivoted: bool = True) -> Counts:
    """Count a decomposition step by step: find the largest of a column, divide by it, subtract."""
    steps = minimum(rows, columns)
    below = steps * rows - exact_div(steps * (steps + 1), 2)
    squares = exact_div((steps - 1) * steps * (2 * steps - 1), 6)
    # sum over j < steps of (rows - 1 - j)·(columns - 1 - j)
    products = (
        steps * (rows - 1) * (columns - 1)
        - exact_div((rows + columns - 2) * steps * (steps - 1), 2) + squares
    )  # fmt: skip
    return (D + OTHER * pivoted) * below + (M + A) * products


def _real(rule: OperationRule) -> OperationRule:
    """Return a rule for real numbers only; complex ones stay uncounted."""
    return lambda out, call: None if first_of(out).is_complex() else rule(out, call)


def _width(a: Any) -> Size:
    return size_of(a.shape[-1])


def _triangular(out: Any, call: Any) -> Counts:
    """Count a solve for rows of the result as unknowns, or, from the right, for columns."""
    left = getattr(call, "left", True)
    n = size_of(out.shape[-2 if left else -1])
    return _solves(n, _batch(out) * size_of(out.shape[-1 if left else -2]),
                   divided=not call.unitriangular)  # fmt: skip


def _solved(out: Any, n: Size) -> Counts:
    """Count two solves by an LU decomposition: one, with ones on the diagonal, divides nothing."""
    columns = exact_div(numel(out), n)
    return _solves(n, columns, divided=False) + _solves(n, columns)


def _by_lu(call: Any) -> Counts:
    a = call.A
    pivoted = getattr(call, "pivot", True)
    return _lu(size_of(a.shape[-2]), _width(a), pivoted=pivoted) * _batch(a)


def _both(out: Any, factor: Any) -> Counts:
    return _solves(_width(factor), exact_div(numel(out), _width(factor))) * 2


rules({names: _real(rule) for names, rule in {
    "linalg_solve_triangular": _triangular,
    "triangular_solve": lambda out, c: _solves(
        _width(c.A), exact_div(numel(out[0]), _width(c.A)), divided=not c.unitriangular
    ),
    "linalg_cholesky_ex cholesky": lambda out, _: (
        _cholesky(_width(first_of(out))) * _batch(first_of(out))
    ),
    "cholesky_solve": lambda out, c: _both(out, c.input2),
    "cholesky_inverse": lambda out, c: _both(out, c.self),
    "linalg_lu_factor_ex linalg_lu": lambda _, c: _by_lu(c),
    "linalg_lu_solve": lambda out, c: _solved(out, _width(c.LU)),
    "lu_unpack": lambda *_: NOTHING,
    "_linalg_solve_ex": lambda out, c: _by_lu(c) + _solved(out[0], _width(c.A)),
    "linalg_inv_ex": lambda out, c: _by_lu(c) + _solved(out[0], _width(c.A)),
    # the product of the diagonal; of its logarithms the sum
    "_linalg_det": lambda _, c: _by_lu(c) + M * exact_div(numel(c.A), _width(c.A)),
    "_linalg_slogdet": lambda _, c: (
        _by_lu(c) + (OTHER + A) * exact_div(numel(c.A), _width(c.A))
    ),
}.items()})  # fmt: skip


# -- what the kernels take on a CPU ------------------------------------------------------
def _laid_out(out: Any, call: Any) -> Size:
    """Return bytes of a triangle copied for each result, where the given ones lie otherwise."""
    a = call.self
    n = _width(a)
    in_order = is_contiguous(a) or is_contiguous(a.mT)
    whole = _batch(out) * n * n * a.element_size()
    return 0 if in_order and numel(a) * a.element_size() == whole else whole


def _pivots(call: Any) -> Size:
    """Return the number of pivots: one for each row."""
    return exact_div(numel(call.A), _width(call.A))


workspaces(
    {
        "linalg_solve_triangular": _laid_out,
        "linalg_lu": lambda _, c: nbytes(c.A) + 4 * _pivots(c) + 4 * _batch(c.A),
        # whether pivots are inside
        "_linalg_solve_ex": lambda _, c: _pivots(c),
        "linalg_lu_solve": lambda _, c: exact_div(numel(c.LU), _width(c.LU)),
        "linalg_inv_ex": lambda _, c: nbytes(c.A) + 5 * _pivots(c),
        "_linalg_det": lambda _, c: 9 * _pivots(c) + 4 * _width(c.A) + 16 * _batch(c.A),
        "_linalg_slogdet": lambda _, c: 9 * _pivots(c) + 4 * _width(c.A) + 12 * _batch(c.A),
        "cholesky_solve": lambda out, c: _batch(out) * _width(c.input2) ** 2 * out.element_size(),
        # permutations, of one matrix more where there are several
        "lu_unpack": lambda _, c: 8 * size_of(c.LU_data.shape[-2]) * (
            _batch(c.LU_data) + (_batch(c.LU_data) != 1)
        ),
    }
)  # fmt: skip
