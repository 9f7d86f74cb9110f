"""The trials of ``alarms.py`` as a table, and its page; rules on stored numbers are here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from rows import table

Row = Mapping[str, Any]
HEADS = (
    ("same", "default"),
    ("5 %", "sensitive"),
    ("10 %", "default"),
    ("20 %", "default"),
)
SAID = {"quiet": "the machine as it is", "busy": "with one process computing all the time"}
NOTES = {
    "quiet": """Two shared cores. Rounds 0 to 4 had them nearly to themselves. From round 5 on a
second process raced the rounds from the last one backwards into a file of its own, joined
afterwards: each was the other's load. The first dozen trials precede faster starts of forks.
""",
    "busy": """Tests of this project ran now and then, too. Forks started 2.7 times slower then
than they do now, which is most of the difference in seconds.
""",
}
INTRO = """# The gate, measured

Unchanged code (a base revision against one with other comments, names and an unused function) and
code slower by an exact share, each trial a race of two persistent processes in turns, as
`attnprof check --against` runs it. `python reports/run.py gate/alarms run quiet`, `… run busy` made
the trials (the commands resume), `… table` the table of them, [alarms.csv](alarms.csv), and this
page.

Two things had to be found before these numbers were possible, both seen as alarms on unchanged
code:

- Tensors that the C library maps and gives back at every call cost page faults, and how many
  depends on where the system put the process: two processes of the same code differed by up to
  17 % for all of their life. The gate's processes keep their memory (no mapping, no trimming).
- Where the heap lies decides how tensors and Python's objects share caches: still up to 5 % between
  two processes, the same for all their forks, whether addresses are random or fixed. Each fork
  now fills its heap with holes of random sizes first: bias becomes noise that is averaged. Bounds
  therefore rest on processes (at least eight of each side), not on pairs.

Trials made while this was found out (about 100, two of them alarms on unchanged code, and their
slowdowns smaller than they said) served to choose the rules and are not counted here. Since the
first trial below two things have been added to `check` that are not part of these verdicts: the
wall clock's rule, which raises no alarm on the pairs of unchanged code below, and the second race
that has to confirm a slowdown, after one alarm on unchanged code while other work began beside it.
"""


def page(trials: Mapping[str, Sequence[Row]]) -> str:
    """The whole page."""
    parts = [INTRO]
    for condition, rows in trials.items():
        if rows:
            title = f"## {SAID[condition].capitalize()}\n"
            parts += [title, NOTES[condition], _outcomes(rows), _stored(rows)]
    return "\n".join(parts)


VERDICTS = ("regressed", "inconclusive", "improved", "ok")


def _outcomes(rows: Sequence[Row]) -> str:
    verdicts = " | ".join(f">{verdict}" for verdict in VERDICTS)
    numbers = ">median processes | >median s | >90 % within s | >median load"
    groups = ((key, [row for row in rows if (row["head"], row["rule"]) == key]) for key in HEADS)
    lines = table(
        f"head | rule | >trials | {verdicts} | {numbers}",
        ((*key, len(some), *_outcome(some)) for key, some in groups if some),
    )
    return "\n".join([*lines, "", _by_sensitive(rows)]) + "\n"


def _outcome(rows: Sequence[Row]) -> list[str]:
    """Return the cells of trials of one head and rule: verdicts, processes, seconds, load."""
    counts = [sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS]
    spent = sorted(row["spent_s"] for row in rows)
    return [
        *(f"{count} ({count / len(rows):.1%})" for count in counts),
        f"{median(row['processes'] for row in rows):.0f}", f"{median(spent):.2f}",
        f"{spent[int(0.9 * (len(spent) - 1))]:.2f}", f"{median(row['load'] for row in rows):.1f}",
    ]  # fmt: skip


def _by_sensitive(rows: Sequence[Row]) -> str:
    """What the sensitive rule says of the pairs of unchanged code that the default one took."""
    some = [row for row in rows if (row["head"], row["rule"]) == ("same", "default")]
    raised = sum(row["sensitive"] == "regressed" for row in some)
    return (
        f"Rule sensitive on the pairs of unchanged code that rule default took: {raised} of "
        f"{len(some)} regressed."
    )


def _mann_whitney(stored: Sequence[float], now: Sequence[float]) -> bool:
    from scipy.stats import mannwhitneyu

    sure = mannwhitneyu(now, stored, alternative="greater").pvalue < 0.01
    return bool(sure) and median(now) > 1.05 * median(stored)


#: Column of the table of trials, name and alarm of rules on stored numbers.
STORED_RULES: dict[str, tuple[str, Callable[[Sequence[float], Sequence[float]], bool]]] = {
    "by_mean": ("mean > 10 % over the stored", lambda stored, now: mean(now) > 1.1 * mean(stored)),
    "by_min": ("min > 10 % over the stored", lambda stored, now: min(now) > 1.1 * min(stored)),
    "by_mann_whitney": ("Mann-Whitney α = 0.01 and median > 5 %", _mann_whitney),
}


def _stored(rows: Sequence[Row]) -> str:
    """The usual rules, comparing with a base measured one round before, in other processes."""
    heads = ("same", "5 %", "10 %", "20 %")
    lines = table(
        " | ".join(("rule", *(f">{head}" for head in heads))),
        ((name, *(_alarms(rows, column, head) for head in heads))
         for column, (name, _) in STORED_RULES.items()),
    )  # fmt: skip
    intro = "The same data judged against numbers stored one round before:\n"
    return "\n".join([intro, *lines]) + "\n"


def _alarms(rows: Sequence[Row], column: str, head: str) -> str:
    alarms = [row[column] for row in rows if row["head"] == head and row[column] != ""]
    raised = alarms.count("alarm")
    return f"{raised} of {len(alarms)} ({raised / len(alarms):.0%})" if alarms else "–"


def compact(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Trials without their pairs: what each of the rules says of these instead."""
    from attnprof.gate.rules import RULES
    from attnprof.gate.times import judge

    base = {(row["case"], row["round"]): row["baseline_s"] for row in rows
            if (row["head"], row["rule"]) == ("same", "default")}  # fmt: skip
    pairs = []
    for row in rows:
        kept = {name: row[name] for name in ("round", "head", "rule", "case", "verdict")}
        kept |= {name: f"{row[name]:.4f}" for name in ("ratio", "low", "high")}
        kept |= {name: row[name] for name in ("processes", "spent_s")} | {
            "load": f"{row['load']:.2f}"
        }
        kept["sensitive"] = judge(row["log_ratios"], RULES["sensitive"]).verdict
        stored = base.get((row["case"], row["round"] - 1))
        for column, (_, alarm) in STORED_RULES.items():
            said = "alarm" if stored and alarm(stored, row["current_s"]) else "quiet"
            kept[column] = said if stored else ""
        pairs.append(kept)
    return pairs
