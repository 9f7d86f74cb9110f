"""Draw a check's ratios as a chart in the words of Mermaid, which GitHub draws in a comment.

A comment shows neither SVG nor an image's data, and a workflow's token has no place to put images.
A block of Mermaid needs none. Of its charts only Gantt's has bars between any two numbers, so a
ratio of 1.19 is told as 1,190 ms, and the axis shows seconds.
"""

import re

from attnprof.gate import rules
from attnprof.record import CheckRecord, Report
from attnprof.render import gate
from attnprof.units import plural, quantity_text

#: Metrics that are drawn: each is a total of its own.
DRAWN = (rules.TIME, "flops", "bytes_moved", "peak_bytes", "dispatched_operations")
#: Cases that are drawn, letters of their names, ratios at which bars end, and a bar's least width.
MOST_CASES, MOST_LETTERS, LEAST, MOST, THIN = 8, 40, 0.25, 4.0, 0.005
#: The look of a bar by its verdict's word.
LOOKS = {"slower": "crit, ", "faster": "active, ", "same": "done, "}
#: Characters with a meaning in a chart's text.
_SIGNS = re.compile(r"[^\w .,=×*+/()\[\]-]")
HEAD = """%%{{init: {{"gantt": {{"leftPadding": {left}}}}}}}%%
gantt
  accTitle: What it costs now, as a multiple of before
  accDescr: {described}
  title What it costs now, as a multiple of before
  dateFormat x
  axisFormat %s.%L
  todayMarker off
  section before
  1.000 :milestone, done, 1000, 0ms
"""


def render_chart(report: Report) -> str:
    """Return the chart's block, a bar a metric by case, worst first; "" if no ratio is known."""
    drawn = []
    for case, records in gate.by_case(report).items():
        if bars := [_bar(record) for record in records if _is_drawn(record)]:
            name = _plain(case)
            cut = len(name) > MOST_LETTERS
            drawn.append((f"{name[:MOST_LETTERS]}…" if cut else name, bars))
    if not drawn:
        return ""
    shown = drawn[:MOST_CASES]
    left = 30 + 6 * max(len(case) for case, _ in shown)
    head = HEAD.format(left=left, described=_plain(gate.headline(report)))
    chart = "".join(f"  section {case}\n{''.join(bars)}" for case, bars in shown)
    more = len(drawn) - len(shown)
    rest = f" {plural(more, 'more case')} below." if more else ""
    said = f"Bars reach from 1 to the ratio; those of time are its interval.{rest}"
    return f"```mermaid\n{head}{chart}```\n\n{said}"


def _is_drawn(record: CheckRecord) -> bool:
    changed = record.metric == rules.TIME or record.verdict != rules.OK
    return changed and record.metric in DRAWN and bool(record.ratio)


def _bar(record: CheckRecord) -> str:
    """Return ``peak memory 1.333×, slower :crit, 1000, 1333``."""
    ratio = record.ratio or 1.0
    ends = record.ci_low or min(ratio, 1.0), record.ci_high or max(ratio, 1.0)
    low, high = (min(max(end, LEAST), MOST) for end in ends)
    word = gate.verdict_word(record.verdict)
    text = f"{quantity_text(record.metric)} {rules.time_text(record)}, {word}"
    start, end = round(1000 * low), round(1000 * max(high, low + THIN))
    return f"  {text} :{LOOKS.get(word, '')}{start}, {end}\n"


def _plain(text: str) -> str:
    return " ".join(_SIGNS.sub(" ", text).split())
