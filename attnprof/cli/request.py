"""What a command is asked, from the text of its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnprof.algebra.parser import short
from attnprof.cli.settings import configured
from attnprof.cli.sizes import check_points, head_shape, parse_names, parse_size, parse_sizes
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Mechanism
from attnprof.units import setting_text
from attnprof.workload import DTYPES, SCOPES, Workload


@dataclass(frozen=True)
class Request:
    """The mechanisms and workloads of a closed-form command, each mechanism at each length."""

    mechanisms: list[Mechanism]
    workloads: list[Workload]
    scope: str


def closed_form_request(
    attention: str,
    seq: str,
    *,
    d_model: str | None,
    heads: str | None,
    d: str | None,
    batch: str,
    scope: str,
    phase: str,
    causal: bool,
    dtype: str,
    settings: Sequence[str] | None,
    num_kv_heads: str | None = None,
    kv_seq: str | None = None,
) -> Request:
    """The request, or :class:`RequestError` saying which flag is wrong."""
    num_heads, head_dim = head_shape(d_model, heads, d)
    one_of(scope, SCOPES, "--scope")
    one_of(dtype, DTYPES, "--dtype")
    names, lengths = parse_names(attention), parse_sizes(seq, "--seq")
    check_points(len(names) * len(lengths), f"--seq {short(seq)}")
    workloads = [
        Workload(
            seq_len,
            num_heads,
            head_dim,
            parse_size(batch, "--batch"),
            num_kv_heads=None if num_kv_heads is None else parse_size(num_kv_heads, "--kv-heads"),
            kv_seq_len=None if kv_seq is None else parse_size(kv_seq, "--kv-seq"),
            causal=causal,
            phase=phase,
            dtype=dtype,
        )
        for seq_len in lengths
    ]
    return Request(configured(names, settings), workloads, scope)


def one_of(value: str, possible: Sequence[str], flag: str) -> str:
    """The value, or :class:`RequestError` with what is possible."""
    if value not in possible:
        raise RequestError(f"{flag} {value}: {closest(value, list(possible))}")
    return value


def some_of(text: str | None, possible: Sequence[str], flag: str) -> list[str]:
    """A list of names out of what is possible, all of them where nothing is asked."""
    if text is None:
        return list(possible)
    return [one_of(name, possible, flag) for name in parse_names(text, flag)]


def label(mechanism: str, params: dict[str, object]) -> str:
    """A mechanism and its parameters as one reads them: ``standard (bias=true)``."""
    settings = " ".join(f"{name}={setting_text(value)}" for name, value in params.items())
    return f"{mechanism} ({settings})" if settings else mechanism
