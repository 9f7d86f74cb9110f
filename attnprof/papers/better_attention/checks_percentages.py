"""000: percentages and savings of time that the text quotes, from the tables they speak of."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from attnprof.papers.better_attention import values
from attnprof.papers.better_attention.values import LENGTH, eq24, multiply_adds, ratio, rows, value
from attnprof.papers.checks import NOT_REPRODUCIBLE, Check, rounded
from attnprof.papers.documents import number

#: What the text quotes, by id: where, the percentage, and the expression where it is printed.
PRINTED = {row["id"]: row for row in values.DOCUMENT.rows("quoted_percentages")}
#: Tables with times a training epoch or an inference takes; the first of them are the main ones.
MAIN, ALL = ("1", "2", "3", "4"), ("1", "2", "3", "4", "5", "6", "8", "9", "10")
ACCURACY, TIME = ("super", "standard"), ("standard", "efficient")
RELATIVE = "training accuracy of Super over standard, relative"


@dataclass(frozen=True)
class Quotation:
    """A percentage (a - b) / c of two mechanisms' values in a table; c is b, or a where ``of_a``.

    ``claim`` says it where it is a claim of its own, ``remarks`` are what its check says of a
    difference; ``digits`` are its printed decimals.
    """

    claim: str
    a: str
    b: str
    table: str
    column: str
    dataset: str
    h: str = ""
    of_a: bool = False
    digits: int = 2
    remarks: Mapping[str, Any] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """The percentage, and a, b and c."""
        where = {"dataset": self.dataset, **({"h": self.h} if self.h else {})}
        a, b = (value(self.table, self.column, name, **where) for name in (self.a, self.b))
        c = a if self.of_a else b
        return {"percent": 100 * (a - b) / c, "a": a, "b": b, "c": c}

    def percent(self) -> float:
        """In percent."""
        return self.numbers()["percent"]

    def check(self, quote: str) -> Check:
        """Its check, with the numbers of the expression where it is printed."""
        said, words = number(PRINTED[quote]["printed_pct"]), RELATIVE
        whole = [float(found) for found in re.findall(r"[0-9.]+", PRINTED[quote]["expression"])]
        if self.column != "acc_pct":
            words = "epoch times of the table in the printed expression"
        form = "; numbers of the expression (a - b) / c" if whole else ""
        return Check(
            f"000-PCT-{self.claim}",
            {"percent": said, **dict(zip("abc", whole, strict=True))} if whole else said,
            self.numbers if whole else self.percent,
            how=f"{words}, Table {self.table}{form}",
            agree=rounded(self.digits),
            tables=("quoted", self.table),
            **self.remarks,
        )


def mnist_lead(over: str = "") -> float:
    """Super's training accuracy on MNIST over another's, or the best other's, in points."""
    points = {
        row["attention"]: float(row["acc_pct"]) for row in rows("1") if row["dataset"] == "MNIST"
    }
    own = points.pop("super")
    return own - (points[over] if over else max(points.values()))


def _mnist_why(_: Any, found: Any) -> str:
    ours = found["percent"]
    times = [value("1", "epoch_time_s", name, dataset="MNIST") for name in ("standard", "super")]
    digits = f"{times[1]:.2f}"
    swapped = float(f"{digits[:-2]}{digits[:-3:-1]}")
    return (
        f"the expression gives {ours:.2f} %; {100 * (times[0] - swapped) / swapped:.2f} % comes "
        f"from {swapped} for {times[1]}, two digits exchanged. As a share of the slower time, as "
        f"the next percentage is, it is {100 * (times[0] - times[1]) / times[0]:.2f} %"
    )


QUOTATIONS = {
    "imagenet_acc_sup_vs_stn": Quotation("17.23", *ACCURACY, "1", "acc_pct", "ImageNet"),
    "mnist_time_sup_vs_stn": Quotation(
        "5.86", "standard", "super", "1", "epoch_time_s", "MNIST", remarks={"why": _mnist_why}
    ),
    "mnist_time_eff_vs_stn": Quotation("15.16", *TIME, "1", "epoch_time_s", "MNIST", of_a=True),
    "amazon_acc_sup_vs_stn": Quotation(
        "6.19", *ACCURACY, "2", "acc_pct", "Amazon",
        remarks={"why": "the expression takes 62.64 for standard attention; Table 2 and Table 9 "
                 "say 62.54, which gives {1[percent]:.2f} %".format},
    ),
    "nmt_time_stn_vs_eff": Quotation("14.72", *TIME, "3", "epoch_time_s", "NMT"),
    "nmt_time_eff_vs_stn_h1": Quotation(
        "15.06", *TIME, "10", "avg_time_s", "NMT", "1", of_a=True,
        remarks={"unchecked": {
            "c": "it divides by 556.6 where Table 10 says 556.5; two decimals do not tell"
        }},
    ),
    "sec6_mnist": Quotation(
        "S6-MNIST", *ACCURACY, "1", "acc_pct", "MNIST", digits=1,
        remarks={"why": "Table 1 gives {1:.2f} %, 3.4 when rounded, or 3.23 points".format},
    ),
    "sec6_cifar100": Quotation(
        "S6-CIFAR", *ACCURACY, "1", "acc_pct", "CIFAR100", digits=1,
        remarks={"why": "Table 1 gives {1:.1f} % (58.68 over 50.38), 8.3 points; no other head "
                 "count of Table 6 gives 12.5 either".format},
    ),
    "sec6_imagenet": Quotation(
        "S6-ImageNet", *ACCURACY, "1", "acc_pct", "ImageNet",
        remarks={"why": "Table 1 gives {1:.2f} %, as Sec 4.1 says".format},
    ),
    "sec6_imdb": Quotation("S6-IMDB", *ACCURACY, "2", "acc_pct", "IMDB", digits=1),
    "sec6_amazon": Quotation(
        "S6-Amazon", *ACCURACY, "2", "acc_pct", "Amazon", digits=1,
        remarks={"note": "and so not the 6.19 % of Sec 4.2"},
    ),
    "b3_imagenet_first": Quotation("", *ACCURACY, "1", "acc_pct", "ImageNet", digits=0),
    "b3_imagenet_second": Quotation("", *ACCURACY, "7", "acc_pct", "ImageNet"),
}  # fmt: skip
#: By quotation: the percentage (or points) from the tables, and the decimals that are printed.
OURS: dict[str, tuple[Callable[[], float], int]] = {
    **{name: (its.percent, its.digits) for name, its in QUOTATIONS.items()},
    "b3_mnist_vs_any": (mnist_lead, 2),
    "b3_mnist_vs_stn": (partial(mnist_lead, "standard"), 2),
}


def _quotations(claim: str, quotes: dict[str, str], **more: Any) -> Check:
    def ours() -> dict[str, float]:
        return {name: OURS[quote][0]() for name, quote in quotes.items()}

    printed = {name: number(PRINTED[quote]["printed_pct"]) for name, quote in quotes.items()}
    return Check(claim, printed, ours, **more)


def time_ratios(mechanism: str, tables: tuple[str, ...]) -> dict[str, float]:
    """Standard attention's time over the mechanism's, by the place of the two times."""
    datasets = {f"{name.lower()}_s": name for name in values.EXPERIMENTS}
    return {
        f"Table {table}, {row['dataset'] or datasets[column]}, h = {row['h']}": (
            number(row[column]) / number(other[column])
        )
        for table in tables
        for row, other in product(rows(table, "standard"), rows(table, mechanism))
        if all(row[key] == other[key] for key in ("dataset", "h"))
        for column in row
        if column.endswith("_s")
    }


def savings(mechanism: str) -> dict[str, float]:
    """Smallest and largest saving of training and inference time in percent, Tables 1 to 4."""
    saved = [100 * (1 - 1 / times) for times in time_ratios(mechanism, MAIN).values()]
    return {"from": min(saved), "to": max(saved)}


def _range_why(mechanism: str, _: Any, ours: dict[str, float]) -> str:
    ratios = time_ratios(mechanism, MAIN)
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return (
        f"the document's own times save {ours['from']:.1f} % ({least}) to {ours['to']:.1f} % "
        f"({most})"
    )


def bound(count: Any, mechanism: str) -> float:
    """The largest ratio of standard's count to the mechanism's: its limit for short contexts."""
    return float(ratio(count, mechanism).subs(LENGTH, 0))


def _reach_why(mechanism: str, missing: str, *_: Any) -> str:
    ratios = time_ratios(mechanism, ALL)
    place = max(ratios, key=ratios.__getitem__)
    return (
        f"{missing}. The most that its tables show is {ratios[place]:.2f} times as fast ({place}); "
        f"Eq 24 allows {bound(eq24, mechanism):.2f}, counted multiplications and additions allow "
        f"{bound(multiply_adds, mechanism):.0f} for contexts much shorter than d_m"
    )


_largest = partial(Check, part="the largest ratio", otherwise=NOT_REPRODUCIBLE, tables=ALL)
CHECKS = [
    *(its.check(quote) for quote, its in QUOTATIONS.items() if its.claim),
    _quotations(
        "000-PCT-B3-2.68",
        {"any other": "b3_mnist_vs_any", "standard": "b3_mnist_vs_stn"},
        part="the best of the others, and standard attention",
        how="Super's training accuracy less the best other's and less standard's, Table 1, points",
        agree=rounded(2),
        why="2.68 points are the lead over Efficient Attention (94.28); Optimised has 95.36, and "
        "over it the lead is 1.60",
        tables=("quoted", "1", "5"),
    ),
    _quotations(
        "000-PCT-B3-27",
        {"Table 1": "b3_imagenet_first", "Table 7": "b3_imagenet_second"},
        how=f"{RELATIVE}, on ImageNet in both tables",
        agree=rounded(0),
        why="exchanged: Table 1 gives {1[Table 1]:.2f} % and Table 7 {1[Table 7]:.2f} %".format,
        tables=("quoted", "1", "7"),
    ),
    *(
        Check(
            f"000-TIME-{mechanism[:3].upper()}",
            {"from": low, "to": high},
            partial(savings, mechanism),
            part="the smallest and the largest saving",
            how=f"times of {mechanism} and standard attention, epochs of Tables 1 to 3 at their "
            "head count and inference of Table 4 at every head count",
            agree=rounded(1),
            why=partial(_range_why, mechanism),
            tables=MAIN,
        )
        for mechanism, low, high in (
            ("optimised", 2.5, 7.5),
            ("efficient", 5.0, 15.0),
            ("super", 2.5, 10.0),
        )
    ),
    _largest(
        "000-SUP-45",
        45,
        lambda: 100 * (max(time_ratios("super", ALL).values()) - 1),
        how="largest ratio of standard's to Super's time in any table, less one",
        agree=rounded(0),
        why=partial(_reach_why, "super", "the sizes, the machine and the measurement are missing"),
    ),
    _largest(
        "000-EFF-2x",
        2.0,
        lambda: max(time_ratios("efficient", ALL).values()),
        how="largest ratio of standard's to Efficient's time in any table",
        agree=rounded(1),
        why=partial(
            _reach_why,
            "efficient",
            "the sentence does not say what is reached two times (speed, size, cost)",
        ),
    ),
]
