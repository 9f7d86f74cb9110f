"""What a command is asked, from the text of its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from typer import Option

from attnprof import registry
from attnprof.algebra.parser import short
from attnprof.cli import options as opt
from attnprof.cli.output import note
from attnprof.cli.sizes import check_points, head_shape, parse_names, parse_size, parse_sizes
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Mechanism
from attnprof.workload import DTYPES, SCOPES, Workload

TAYLORSHIFT = ("taylor-direct", "taylor-efficient")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Which mechanisms, at which lengths and widths."""

    attention: opt.AttentionOption = None
    seq: opt.SeqOption = "1024"
    d_model: Annotated[str | None, Option(metavar="SIZE", help="Model width (default 512).")] = None
    heads: Annotated[str | None, Option(metavar="SIZE", help="Number of heads (default 8).")] = None
    d: Annotated[
        str | None, Option(metavar="SIZE", help="Head width; otherwise d_model / heads.")
    ] = None

    def lengths(self) -> list[int]:
        """The sequence lengths."""
        return parse_sizes(self.seq or "", "--seq")

    def heads_and_width(self) -> tuple[int, int]:
        """Number of heads and head width."""
        return head_shape(self.d_model, self.heads, self.d)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What holds for all points of a request; arithmetic needs no device."""

    batch: opt.BatchOption = "1"
    phase: opt.PhaseOption = "forward"
    causal: opt.CausalOption = False
    dtype: opt.DtypeOption = "float32"
    device: opt.DeviceOption = "auto"
    settings: opt.SetOption = None

    def workload(self, seq_len: int, num_heads: int, head_dim: int, **more: Any) -> Workload:
        """One workload under these conditions; :class:`RequestError` says which flag is wrong."""
        return Workload(
            seq_len, num_heads, head_dim, parse_size(self.batch, "--batch"),
            causal=self.causal, phase=self.phase, dtype=self.dtype, **more,
        )  # fmt: skip

    def configured(self, names: Sequence[str]) -> list[Mechanism]:
        """The named mechanisms, each with those ``--set`` texts it has a parameter for.

        Raises :class:`RequestError` for an unknown name, and for a setting that none of them has.
        """
        return registry.configured(names, parse_set(self.settings))


def closed_form_request(
    shape: Shape, conditions: Conditions, scope: str, names: Sequence[str], **more: int | None
) -> tuple[list[Mechanism], list[Workload]]:
    """Mechanisms and workloads of a closed-form command, each mechanism at each length.

    ``more`` are further sizes of a workload. Raises :class:`RequestError` saying which flag is
    wrong.
    """
    num_heads, head_dim = shape.heads_and_width()
    one_of(scope, SCOPES, "--scope")
    one_of(conditions.dtype, DTYPES, "--dtype")
    lengths = shape.lengths()
    check_points(len(names) * len(lengths), f"--seq {short(str(shape.seq))}")
    workloads = [conditions.workload(n, num_heads, head_dim, **more) for n in lengths]
    return conditions.configured(names), workloads


def parse_set(settings: Sequence[str] | None) -> dict[str, str]:
    """``k=v`` texts as a mapping; the last one of a name counts."""
    found: dict[str, str] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise RequestError(f"--set {text}: type a name, '=' and a value, like window=256")
        found[name.strip()] = value.strip()
    return found


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


def names_of(arguments: Sequence[str | None], attention: str | None) -> list[str]:
    """The mechanisms of a command, from its arguments or ``--attention``; none by default.

    Raises :class:`RequestError` for both ways at once.
    """
    given = [name for name in arguments if name is not None]
    if given and attention is not None:
        raise RequestError("name the mechanisms once: as A B, or as --attention A,B")
    return given if attention is None else parse_names(attention)


def targets_of(
    names: list[str], settings: list[str] | None, modules: opt.Modules, *, causal: bool, dtype: str
) -> list[Any]:
    """Registered mechanisms with their settings; modules like ``my.py:A`` as targets to derive."""
    own = {name for name in names if ":" in name and not _is_mechanism(name)}
    registered = [name for name in names if name not in own]
    if (modules.args or modules.inputs) and not own:
        raise RequestError("--arg and --input are for modules like my.py:MyAttention")
    found: dict[str, Any] = dict(
        zip(registered, registry.configured(registered, parse_set(settings)), strict=True)
    )
    if own:
        from attnprof.trace.request.lookup import target_from
    for name in own:
        args, inputs = modules.args, modules.inputs
        target = target_from(name, args, inputs, None, None, causal, dtype)
        asked = {"args": list(args or ()), "inputs": list(inputs or ())}
        found[name] = replace(target, asked=asked)
        for line in target.notes:
            note(f"{target.name}: {line}")
        if "d" not in target.symbols:
            note(f"{target.name}: its sizes are its own; head widths and heads do not reach it")
    return [found[name] for name in names]


def _is_mechanism(name: str) -> bool:
    """Whether ``path.py:Name`` is a specification of a mechanism and no torch module."""
    from attnprof.trace.request.places import loaded

    found = loaded(name)
    return isinstance(found, type) and issubclass(found, Mechanism)
