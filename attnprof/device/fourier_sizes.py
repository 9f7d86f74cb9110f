"""Points of Fourier transforms: their prime factors decide how fast they are."""

from math import log2

#: Largest prime factors that are measured.
PRIMES = (2, 3, 5, 7, 11, 13, 17, 31, 61, 127, 251, 509)


def points_of(prime: int) -> int:
    """About a thousand points whose largest prime factor is this one."""
    return int(prime << round(log2(1024 / prime)))


def largest_prime(number: int) -> int:
    """The largest prime factor, 2 of what has none."""
    largest, factor = 2, 2
    while factor * factor <= number:
        while number % factor == 0:
            number, largest = number // factor, factor
        factor += 1
    return max(largest, number)
