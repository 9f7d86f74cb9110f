"""002's figures of the sublayers, from what each step of their definitions waits for."""

from functools import partial

from attnprof.papers.checks import formula, same_formula
from attnprof.papers.extractors import counts
from attnprof.papers.extractors.counts import critical_path, last_step, length, sequence, steps
from attnprof.papers.regenerated import FigureData, PaperFigure, Statement, described

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


def sublayer(name: str) -> FigureData:
    """A sublayer's steps for one more token, what each waits for, and its critical path."""
    way, ours, entries = last_step(name)["way"], critical_path(name), sequence(name)["params"]
    rows = [
        {"step": step["step"], "waits for": " + ".join(step["waits"]) or "input row",
         "operations": step["operations"], "on critical path": step["step"] in way,
         **dict(zip(NAMES, map(int, counts.counts(step["cost"]).values()), strict=True))}
        for step in steps(name)
    ]  # fmt: skip
    drawn = formula(" + ".join(DRAWN[name].values()))
    gaps = {"names": ", ".join(DRAWN[name]), "drawn": drawn, "entries": entries}
    said: list[Statement] = [("weights", same_formula(drawn, entries), gaps)]
    for row in counts.DOCUMENT.rows("critical_paths"):
        if (row["sublayer"], row["printed"]) == (name, "yes"):  # Section 7 has none for HE and WE
            printed = row["steps_in_order"]
            said.append(("path", printed == ours, {"printed": _told(printed), "ours": _told(ours)}))
    facts = {"critical path": ours.replace(";", "-"), "its steps": length(ours)}
    return FigureData(rows, described("002", said), facts)


def _told(path: str) -> str:
    return f"{path.replace(';', '-')} ({length(path)})"


FIGURES = {
    "2": PaperFigure(
        "The self-attention sublayer, one more token", partial(sublayer, "self_attention")
    ),
    "3": PaperFigure("SHE, one more token", partial(sublayer, "she")),
    "4": PaperFigure("WE, one more token", partial(sublayer, "we")),
    "5": PaperFigure("HE, one more token", partial(sublayer, "he")),
    "6": PaperFigure("ME, one more token", partial(sublayer, "me")),
}  # fmt: skip
