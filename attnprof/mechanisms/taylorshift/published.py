"""The closed forms document 004 prints, untouched; each for one sequence.

The head forms are printed in d_e = h·d; here they are written in d, so that ints stay ints.
"""

from __future__ import annotations

from collections.abc import Callable

from attnprof.costs import Number
from attnprof.published import Published
from attnprof.workload import Workload


def direct_flops(w: Workload) -> Number:
    """Eq 4, one head: 4·N²·d + 6·N²."""
    return 4 * w.seq_len**2 * w.head_dim + 6 * w.seq_len**2


def efficient_flops(w: Workload) -> Number:
    """Eq 5, one head: N·(4d³ + 10d² + 8d + 3)."""
    d = w.head_dim
    return w.seq_len * (4 * d**3 + 10 * d**2 + 8 * d + 3)


def direct_entries(w: Workload) -> Number:
    """Sec 4.2, one head: d·N + 2·N² (values; scores and their Taylor map)."""
    return w.head_dim * w.seq_len + 2 * w.seq_len**2


def efficient_entries(w: Workload) -> Number:
    """Sec 4.2, one head: d³ + (N+1)·d² + 3·N·d + N (A_mod, K⊠K, Q, K, V and ones)."""
    n, d = w.seq_len, w.head_dim
    return d**3 + (n + 1) * d**2 + 3 * n * d + n


def _forms(number: str, name: str, *, efficient: bool) -> tuple[Published, ...]:
    flops = efficient_flops if efficient else direct_flops
    entries = efficient_entries if efficient else direct_entries
    short = "eff" if efficient else "triv"
    return (
        _form(number, "flops", flops, "one"),
        _form(f"004-ENT-{name}", "peak_entries", entries, "one"),
        _form(f"004-MHSA-{short}", "flops", flops, "any"),
        _form(f"004-MHSA-ENT-{name}", "peak_entries", entries, "any"),
    )


def _form(source: str, quantity: str, one: Callable[[Workload], Number], heads: str) -> Published:
    # With d = d_e/h the printed head forms are h times those of one head, term by term.
    many = one if heads == "one" else lambda w: w.num_heads * one(w)
    convention = "flops" if quantity == "flops" else "entries"
    return Published(source, quantity, "core", "forward", convention, formula=many, heads=heads)


DIRECT = _forms("004-EQ4", "DIRECT", efficient=False)
EFFICIENT = _forms("004-EQ5", "EFFICIENT", efficient=True)
