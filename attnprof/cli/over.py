"""The flags of ``attnprof crossover --over``: the size that varies, and the fixed ones."""

from dataclasses import dataclass
from typing import Any

from typer import Option

from attnprof.algebra.parser import short
from attnprof.cli import request
from attnprof.crossovers.axis import SIZES, CrossoverAxis
from attnprof.errors import RequestError
from attnprof.workload import Workload

#: Default sizes.
USUAL = {"seq": "1024", "d": "64", "heads": "1", "d-model": "512"}


@dataclass(frozen=True, kw_only=True)
class Over:
    """The size that varies: the length or, at fixed lengths, another one in a range."""

    over: str = Option(
        "seq", "--over", metavar="NAME",
        help="seq (the length), d, heads, batch, kv_heads, or a parameter like window.",
    )  # fmt: skip
    seq: str | None = Option(
        None, metavar="SIZES", help="Lengths for another --over than seq (default 1024)."
    )
    d_model: str | None = Option(
        None, metavar="SIZE",
        help="Model width that --over heads shares (default 512); not with --d.",
    )  # fmt: skip
    span: str | None = Option(
        None, "--range", metavar="LOW:HIGH", help="Values looked at, for another --over than seq."
    )

    def asked(
        self, d: str | None, heads: str | None, conditions: request.Conditions
    ) -> tuple[CrossoverAxis, Workload, list[int]]:
        """Return the axis, the sizes of all rows, and each row's own: a head width or a length."""
        typed = {"seq": self.seq, "d": d, "heads": heads, "d-model": self.d_model}
        batch = None if conditions.batch == "1" else conditions.batch
        if {**typed, "batch": batch}.get(self.over):
            raise RequestError(f"--over {self.over} looks for it: leave --{self.over} out")
        if self.over == "seq":
            self._refuse_other_flags()
            widths = request.parse_sizes(d or USUAL["d"], "--d")
            request.check_points(len(widths), f"--d {short(d or USUAL['d'])}")
            count = request.parse_size(heads or USUAL["heads"], "--heads")
            return CrossoverAxis(), conditions.workload(1, count, widths[0]), widths
        if self.over in request.parse_set(conditions.settings):
            raise RequestError(f"--over {self.over} looks for it: leave --set {self.over} out")
        lengths = request.parse_sizes(self.seq or USUAL["seq"], "--seq")
        request.check_points(len(lengths), f"--seq {short(str(self.seq))}")
        count = request.parse_size(heads or USUAL["heads"], "--heads")
        width = request.parse_size(d or USUAL["d"], "--d")
        if self.over == "kv_heads" and count == 1:
            raise RequestError("--over kv_heads divides the heads: type how many, like --heads 32")
        return self._axis(d), conditions.workload(lengths[0], count, width), lengths

    def _refuse_other_flags(self) -> None:
        """Raise RequestError for flags of another ``--over`` than seq."""
        for flag, value in {"--d-model": self.d_model, "--range": self.span}.items():
            if value is not None:
                raise RequestError(
                    f"{flag} is for another --over than seq: add --over heads, or --over d"
                )

    def _axis(self, d: str | None) -> CrossoverAxis:
        """Return the axis with its range; heads share a model width unless ``--d`` is typed."""
        if self.d_model is not None and (d is not None or self.over != "heads"):
            why = "with --d the model's width varies" if d else "the widths are --heads times --d"
            raise RequestError(f"--d-model {self.d_model} is for --over heads alone: {why}")
        first, last = self._range()
        width = None
        if self.over == "heads" and d is None:
            width = request.parse_size(self.d_model or USUAL["d-model"], "--d-model")
            if first > width:
                raise RequestError(
                    f"--range {self.span}: d_model {width} has no more than {width} heads"
                )
            last = min(last or width, width)
        name = self.over if self.over in SIZES else self.over.replace("-", "_")
        return CrossoverAxis(name, first, last, width)

    def _range(self) -> tuple[int, int | None]:
        if self.span is None:
            return 1, None
        low, colon, high = self.span.partition(":")
        if not colon:
            raise RequestError(f"--range {self.span}: type the first and the last, like 1:512")
        first, last = (request.parse_size(end, "--range") for end in (low, high))
        if last < first:
            raise RequestError(f"--range {self.span}: the range ends before it starts")
        return first, last

    def typed(self) -> dict[str, Any]:
        """Return which flags were typed: ``{"--over": False, "--seq": True, …}``."""
        usual = Over(seq=None, d_model=None, span=None, over="seq")
        flags = {"over": "--over", "seq": "--seq", "d_model": "--d-model", "span": "--range"}
        return {flags[name]: value != getattr(usual, name) for name, value in vars(self).items()}
