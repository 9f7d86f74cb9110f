"""Prime factors of a Fourier transform's points."""

import pytest
import sympy

from attnprof.device.fourier_sizes import PRIMES, largest_prime, points_of


@pytest.mark.parametrize("number", [1, 2, 9, 12, 64, 97, 360, 1022, 1023, 2 * 509, 3**5 * 7])
def test_the_largest_prime_is_sympys(number):
    assert largest_prime(number) == max(sympy.primefactors(number), default=2)


@pytest.mark.parametrize("prime", PRIMES)
def test_measured_points_are_about_a_thousand(prime):
    assert largest_prime(points_of(prime)) == prime
    assert 600 < points_of(prime) < 1500
