"""Triangular solves and decompositions: against textbook loops that count each operation."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests.trace.counted import counted, counted_by_symbols, plus

linalg, aten = torch.linalg, torch.ops.aten


class Number:
    """A real number that counts what is done with it."""

    def __init__(self, value, seen):
        self.value, self.seen = float(value), seen

    def _new(self, letter, value):
        self.seen[letter] += 1
        return Number(value, self.seen)

    def __mul__(self, other):
        return self._new("M", self.value * other.value)

    def __sub__(self, other):
        return self._new("A", self.value - other.value)

    def __truediv__(self, other):
        return self._new("D", self.value / other.value)

    def __gt__(self, other):
        self.seen["O"] += 1
        return abs(self.value) > abs(other.value)

    def root(self):
        return self._new("O", self.value**0.5)


def matrix(rows, columns, seen, *, dominant=False):
    values = np.random.default_rng(rows).normal(size=(rows, columns))
    if dominant:
        values = values @ values.T + rows * np.eye(rows)
    return [[Number(x, seen) for x in row] for row in values]


def solved(a, b, *, ones=False):
    """Forward substitution, in place, for each column of b."""
    for column in range(len(b[0])):
        for i in range(len(a)):
            for j in range(i):
                b[i][column] = b[i][column] - a[i][j] * b[j][column]
            if not ones:
                b[i][column] = b[i][column] / a[i][i]


def choleskied(a):
    for j in range(len(a)):
        for i in range(j, len(a)):
            for k in range(j):
                a[i][j] = a[i][j] - a[i][k] * a[j][k]
            a[i][j] = a[j][j].root() if i == j else a[i][j] / a[j][j]


def eliminated(a):
    rows, columns = len(a), len(a[0])
    for j in range(min(rows, columns)):
        best = j
        for i in range(j + 1, rows):
            if a[i][j] > a[best][j]:
                best = i
        a[j], a[best] = a[best], a[j]
        for i in range(j + 1, rows):
            a[i][j] = a[i][j] / a[j][j]
            for k in range(j + 1, columns):
                a[i][k] = a[i][k] - a[i][j] * a[j][k]


def loops(n, m, *, steps, times=1):
    """Counts of loops over an n×n matrix and n×m right hand sides, for so many matrices."""
    seen = Counter()
    for step in steps:
        if step is choleskied:
            step(matrix(n, n, seen, dominant=True))
        elif step is eliminated:
            step(matrix(n, m, seen))
        else:
            step(matrix(n, n, seen), matrix(n, m, seen))
    return {letter: times * count for letter, count in seen.items() if count}


def unit(a, b):
    solved(a, b, ones=True)


def system(a, b):
    """By elimination, and two substitutions."""
    eliminated(a)
    unit(a, b)
    solved(a, b)


def lower(a, b):
    return linalg.solve_triangular(a, b, upper=False)


CASES = {
    "solve_triangular": (lower, 3, (5, 5), (5, 4), [solved]),
    "batches": (lower, 6, (2, 3, 5, 5), (2, 3, 5, 4), [solved]),
    "a matrix for all": (lower, 3, (5, 5), (3, 5, 4), [solved]),
    "ones on the diagonal": (
        lambda a, b: linalg.solve_triangular(a, b, upper=True, unitriangular=True),
        3, (5, 5), (5, 4), [unit],
    ),
    "from the right": (
        lambda a, b: linalg.solve_triangular(a, b.mT, upper=True, left=False),
        3, (5, 5), (5, 4), [solved],
    ),
    "cholesky": (lambda a, _: linalg.cholesky(a), 3, (7, 7), (7, 1), [choleskied]),
    "cholesky_solve": (lambda a, b: torch.cholesky_solve(b, a), 3, (5, 5), (5, 4), [solved] * 2),
    "lu_factor": (lambda a, _: linalg.lu_factor(a), 3, (6, 6), (6, 6), [eliminated]),
    "lu of a tall one": (lambda a, _: linalg.lu(a), 3, (7, 4), (7, 4), [eliminated]),
    "lu of a wide one": (lambda a, _: linalg.lu(a), 3, (4, 7), (4, 7), [eliminated]),
    "solve": (linalg.solve, 3, (5, 5), (5, 4), [system]),
    "inv": (lambda a, _: linalg.inv(a), 3, (5, 5), (5, 5), [system]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_solves_and_decompositions_count_what_loops_count(name):
    run, times, a, b, steps = CASES[name]
    batched = [shape if len(shape) > 2 or name == "a matrix for all" else (times, *shape)
               for shape in (a, b)]  # fmt: skip
    expected = Counter()
    if steps == [system]:
        expected.update(loops(a[-2], a[-1], steps=[eliminated], times=times))
        expected.update(loops(b[-2], b[-1], steps=[unit], times=times))
        expected.update(loops(b[-2], b[-1], steps=[solved], times=times))
    else:
        expected.update(loops(b[-2], b[-1], steps=steps, times=times))
    assert counted(run, *batched) == expected
    if len({*a, *b, times}) == len(set(a)) + len({*b} - {*a}) + 1:  # sizes apart
        assert counted_by_symbols(run, *batched) == expected


def test_determinants_multiply_their_diagonal():
    factored = counted(linalg.lu_factor, (3, 5, 5))
    assert counted(linalg.det, (3, 5, 5)) == plus(factored, {"M": 15})
    assert counted(linalg.slogdet, (3, 5, 5)) == plus(factored, {"O": 15, "A": 15})


def test_a_solve_is_differentiated_by_a_solve_and_a_product():
    found = counted(lower, (2, 5, 5), (2, 5, 4), backward=True)
    products = 2 * 5 * 4 * 5
    solve = counted(lower, (2, 5, 5), (2, 5, 4))
    assert found["P"] == 2 * products
    assert found["D"] == solve["D"]
    assert found["M"] == solve["M"] + products


def test_grouped_bins_and_weighted_counts():
    assert counted(lambda x: torch.histc(x, 9, 0, 1), (70,)) == {
        "O": 140, "A": 140, "M": 70, "D": 70
    }  # fmt: skip
