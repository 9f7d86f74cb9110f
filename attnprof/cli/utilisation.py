"""The flags of ``attnprof model --mfu``: FLOPs a token, for model FLOPs utilisation."""

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from typer import Option

from attnprof.cli import options as opt
from attnprof.cli.options import working
from attnprof.cli.request import parse_lengths, parse_size
from attnprof.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Mfu:
    """Flags for FLOPs a token, as model FLOPs utilisation takes them."""

    mfu: bool = Option(
        False, "--mfu", help="FLOPs a token by conventions of papers and trainers, for MFU."
    )
    counting: str | None = Option(
        None, "--convention", metavar="NAME",
        help="With --mfu: palm, megatron, torchtitan, verl, 6n, executed or all (the default).",
    )  # fmt: skip
    lengths: str | None = Option(
        None, metavar="SIZES", help="With --mfu: tokens of each sequence of a packed batch."
    )
    as_python: Path | None = Option(
        None, metavar="FILE", help="With --mfu: write it there as a Python function, too."
    )

    def is_asked(self, **others: object) -> bool:
        """Return whether FLOPs a token are asked for.

        Raises :class:`RequestError` for flags of it without ``--mfu``, and for ``others`` with it.
        """
        own = {"convention": self.counting, "lengths": self.lengths, "as-python": self.as_python}
        flag = next((name for name, x in (others if self.mfu else own).items() if x), "")
        if flag and self.mfu:
            flag = flag.replace("_", "-")
            raise RequestError(f"--{flag} and --mfu are two questions: leave one of them out")
        if flag:
            raise RequestError(f"--{flag} is about FLOPs a token: type --mfu, too")
        return self.mfu

    def answer(self, config: str, seq: str | None, to: opt.Output) -> None:
        """Write FLOPs a token of a model, and the Python file if one is asked for."""
        import attnprof
        from attnprof.models.mfu import conventions_of, mfu_report
        from attnprof.models.mfu import python_file
        from attnprof.models.mfu_sizes import sizes_of

        conventions = conventions_of(self.counting or "all")
        lengths = parse_lengths(self.lengths, "--lengths") if self.lengths else []
        if seq is not None and lengths:
            raise RequestError("--seq and --lengths both say how long sequences are: type one")
        lengths = lengths or ([] if seq is None else [parse_size(seq, "--seq")])
        opt.ensure_writable(self.as_python, force=to.force, flag="--as-python")
        with redirect_stdout(sys.stderr), working(f"counting {config}"):
            sizes = sizes_of(config)
            where = opt.environment()
        report = mfu_report(sizes, conventions, lengths or [sizes.usual_length], where)
        if self.as_python is not None:
            opt.write(python_file(sizes, conventions, config, attnprof.__version__), self.as_python)
        to.deliver(report)
