"""002's figures and tables: dependencies between the steps of a definition, settings, counts."""

from functools import partial
from typing import Any

from attnprof.papers.checks import formula, rounded, same_formula
from attnprof.papers.extractors import checks
from attnprof.papers.extractors.checks import DOCUMENT, INFERENCE, PATHS, TRAINING, counted, length
from attnprof.papers.regenerated import Computed, Row, Statement, both_values, figures_of, tables_of

NAMES = ("multiplications", "additions", "divisions", "exponentials")
#: The weights that Sections 4 and 5 put into each drawing, with their number of entries.
SQUARE = "d**2"
DRAWN = {
    "self_attention": {"W_Q": SQUARE, "W_K": SQUARE, "W_V": SQUARE, "W_out": SQUARE},
    "she": {"W_1 to W_l": "l*d**2", "W_adj": SQUARE, "W_out": SQUARE},
    "we": {"w_1 to w_l": "l*d", "W_adj": SQUARE, "W_out": SQUARE},
    "he": {"W_in": SQUARE, "w_1 to w_l": "l*d", "W_adj": SQUARE, "W_out": SQUARE},
    "me": {"w_1 to w_l": "l"},
}


def sublayer(name: str) -> Computed:
    """Return a sublayer's steps for one more token, their dependencies, and the critical path."""
    path, ours = checks.last_step(name)["path"], checks.critical_path(name)
    rows = [
        {"step": step["step"], "waits for": " + ".join(step["waits"]) or "input row",
         "operations": step["operations"], "on critical path": step["step"] in path,
         **dict(zip(NAMES, map(int, checks.counts(step["cost"]).values()), strict=True))}
        for step in checks.steps(name)
    ]  # fmt: skip
    drawn, entries = formula(" + ".join(DRAWN[name].values())), checks.sequence(name)["params"]
    gaps = {"names": ", ".join(DRAWN[name]), "drawn": drawn, "entries": entries}
    said: list[Statement] = [("weights", same_formula(drawn, entries), gaps)]
    if printed := PATHS.get(name):  # Section 7 has none for HE and WE
        words = {"printed": _path_text(printed), "ours": _path_text(ours)}
        said.append(("path", printed == ours, words))
    return rows, said, {"critical path": ours.replace(";", "-"), "its steps": length(ours)}


def _path_text(path: str) -> str:
    return f"{path.replace(';', '-')} ({length(path)})"


DRAWN_IN = {"2": "self_attention", "3": "she", "4": "we", "5": "he", "6": "me"}
TITLES = {"self_attention": "The self-attention sublayer", "she": "SHE", "we": "WE", "he": "HE",
          "me": "ME"}  # fmt: skip
FIGURES = figures_of("002", {
    key: (f"{TITLES[name]}, one more token", partial(sublayer, name))
    for key, name in DRAWN_IN.items()
})  # fmt: skip


def _settings() -> list[dict[str, Any]]:
    """Return Table 1, where the epochs follow from other values."""
    rows: list[dict[str, Any]] = [
        {name: row[name] for name in ("key", "symbol", "value")}
        for row in DOCUMENT.rows("table01_hyperparameters")
    ]
    for row in rows:
        if row["key"] == "epochs":
            row["value"] = both_values(float(row["value"]), checks.epochs(), rounded(3))
    return rows


def _closed_forms(number: str) -> list[dict[str, Any]]:
    """Return a table of closed forms, and of the sums of the printed terms."""
    return [
        {"quantity": row["quantity"], "sublayer": row["sublayer"],
         "terms": both_values(checks.terms_of(row), counted(row), same_formula),
         "closed form": both_values(row["closed_form_printed"], counted(row), same_formula)}
        for row in DOCUMENT.rows((TRAINING | INFERENCE)[number])
    ]  # fmt: skip


def _number(name: str, row: Row) -> int:
    """Return our number of a column of Table 7."""
    return checks.column(name)[row["quantity"]]


TABLES = tables_of(
    "002",
    {"7": {name: partial(_number, name) for name in checks.COLUMNS}},
    {"1": _settings, **{n: partial(_closed_forms, n) for n in TRAINING | INFERENCE}},
)
