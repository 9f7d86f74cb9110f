"""``attnprof verify-formula``: a printed formula, or a table of them, against the code."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli.request import parse_named_sizes, parse_names, parse_set, parse_size
from attnprof.errors import CannotRunError, CheckFailedError, RequestError
from attnprof.record import Report
from attnprof.user_code import check_place

if TYPE_CHECKING:
    from attnprof.verify.printed import Printed

OF_MODEL = 'attnprof verify-formula --model config.json "6*P + 12*L*h*d*N"'
EXAMPLE = 'attnprof verify-formula "4*N**2*d + 6*N**2" taylor-direct --scope core --where h=1'


@dataclass(frozen=True, kw_only=True)
class Interpretation:
    """Flags for how a printed formula is read, and how far it is compared."""

    meaning: list[str] | None = opt.flag(
        "NAME=SIZES", "What a name stands for: D=h*d; repeatable.", "--where"
    )
    up_to: str = opt.flag("LEVEL", "exact, leading (terms) or order (growth).", default="exact")
    growing: str | None = opt.flag("NAMES", "Sizes that grow: others do not.", "--in")
    at: list[str] | None = opt.flag("SIZES", "Numbers at a shape: N=4096,h=8,d=64; repeatable.")


@dataclass(frozen=True, kw_only=True)
class WholeModelFormula:
    """Flags for a formula of a whole model's FLOPs a token."""

    of_model: str | None = opt.flag(
        "CONFIG", "The formula is of this model's FLOPs a token: a config.json or a name.",
        "--model",
    )  # fmt: skip
    seq: str | None = opt.flag("SIZE", "With --model: the N of the numbers (default: 4096).")

    def is_asked(self) -> bool:
        """Return whether a model is named; :class:`RequestError` for its length alone."""
        if self.of_model is None and self.seq is not None:
            raise RequestError("--seq is for a model's FLOPs a token: type --model, too")
        return self.of_model is not None

    def answer(self, row: "Printed", phase: str | None, to: opt.Output) -> None:
        """Compare the formula with the model's FLOPs term by term, and write the differences."""
        from attnprof.models.conventions import PHASES
        from attnprof.models.names import named

        if self.of_model is None or not row.formula:
            raise RequestError(f"verify-formula --model needs a formula: type {OF_MODEL}")
        if row.source.target:
            raise RequestError("give --model or a target, not both")
        phase = opt.one_of(phase or "train", PHASES, "--phase")
        n = parse_size(self.seq or "4096", "--seq")
        named(self.of_model)  # before torch is loaded
        with opt.working(f"counting {self.of_model}"):
            from attnprof.models.mfu_sizes import sizes_of
            from attnprof.verify.model_formula import model_formula_report

            sizes = sizes_of(self.of_model)
            report = model_formula_report(
                sizes, row.formula, phase, n, row.where, opt.environment()
            )
        to.deliver(report)
        if not report.summary["match"]:
            raise CheckFailedError(report.summary["answer"])


def verify_formula(
    *,
    formula: str | None = Argument(
        None, metavar="FORMULA", help="As printed, like '4*N**2*d' or 'O(N^2)'."
    ),
    target: str | None = Argument(
        None, metavar="TARGET", help="my.py:Name, package.module:Name, or a mechanism."
    ),
    table: Path | None = opt.flag("FILE", "A CSV file with a formula a row."),
    attention: str | None = opt.flag("NAME", "TARGET as a mechanism's name.", "--attention", "-a"),
    modules: opt.Modules,
    settings: opt.SetOption = None,
    scope: opt.OwnScopeOption = None,
    phase: str | None = opt.flag(
        "PHASE", "forward, prefill (causal forward), backward, train or decode.",
        show_default="forward; train with --model",
    ),
    quantity: str = opt.flag("NAME", "What it counts, like flops or macs.", default="flops"),
    kind: str | None = opt.flag("KIND", "formula (ours) or derived (from code)."),
    convention: opt.ConventionOption = "flops",
    causal: opt.CausalOption = False,
    reading: Interpretation,
    whole: WholeModelFormula,
    dtype: opt.DtypeOption = "float32",
    to: opt.Output,
) -> None:  # fmt: skip
    """Check a published formula, or a table of them, against code.

    Code is derived, a mechanism has its closed form. Ends with 1 where a formula differs.

    Examples:
      attnprof verify-formula "h*(4*N**2*d + 6*N**2)" taylor-direct --scope core
      attnprof verify-formula "O(N^2)" standard --up-to order --in N
      attnprof verify-formula --table formulas.csv my.py:MyAttention
      attnprof verify-formula --model llama "6*P + 12*L*h*d*N"
    """
    if table is not None and target is None:
        formula, target = None, formula
    if target is not None and attention is not None:
        raise RequestError(f"two targets: {target} and --attention {attention}; give one")
    _check_order(formula, target or "")
    from attnprof.verify.comparison import UP_TO
    from attnprof.verify.own_formulas import KINDS, Source
    from attnprof.verify.printed import PHASES, Printed, meanings, with_phase

    opt.among("--phase", PHASES)(phase)
    opt.one_of(reading.up_to, UP_TO, "--up-to")
    opt.among("--kind", KINDS)(kind)
    source = Source(
        target or attention or "", kind or "", convention, scope or "", causal, dtype,
        tuple(modules.args or ()), tuple(modules.inputs or ()), tuple(parse_set(settings).items()),
    )  # fmt: skip
    row = Printed(
        formula or "", source, quantity=quantity, where=meanings(reading.meaning or ()),
        growing=tuple(parse_names(reading.growing, "--in")) if reading.growing else (),
        at=parse_named_sizes(reading.at), up_to=reading.up_to,
    )  # fmt: skip
    if whole.is_asked():
        whole.answer(row, phase, to)
    else:
        _answer(with_phase(row, phase or "forward"), table, to)


def _check_order(formula: str | None, target: str) -> None:
    """Refuse a target that names nothing that can be found, and one that comes first."""
    if formula in registry.names() and target not in ("", *registry.names()):
        raise RequestError(
            f"{formula} is a mechanism: the formula comes first; type attnprof verify-formula "
            f"'{target}' {formula}"
        )
    check_place(target)


def _answer(row: "Printed", table: Path | None, to: opt.Output) -> None:
    """Write the verdict on a formula, or on each row of a table; raise if one differs."""
    from attnprof.verify.printed import rows_of
    from attnprof.verify.verification import ERRATUM, answer, verified

    if table is None and not (row.formula and row.source.target):
        raise RequestError(f"verify-formula needs a formula and what it is of: type {EXAMPLE}")
    if table is not None and row.formula:
        raise RequestError("give FORMULA or --table, not both")
    rows, unused = ([row], []) if table is None else rows_of(table, row)
    if unused:
        opt.note(f"{table}: not read are the columns {', '.join(unused)}")
    targets = ", ".join(dict.fromkeys(row.source.target for row in rows))
    with opt.working(f"verifying: {targets}"):
        records = verified(rows)
    counts = Counter(record.verdict for record in records)
    summary = {"match": counts["match"], "erratum": counts[ERRATUM], "not compared": counts[None],
               "answer": answer(records)}  # fmt: skip
    to.deliver(Report("verify-formula", records, summary, opt.environment()))
    if counts[ERRATUM]:
        raise CheckFailedError(answer(records))
    if counts[None] == len(records):
        raise CannotRunError(f"nothing could be compared: {records[0].skipped}")
