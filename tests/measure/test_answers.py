"""What measured points say in a sentence, and which conditions name them."""

import pytest

from attnprof.measure.batch import answer
from attnprof.record import ProfileRecord, Report
from attnprof.record.measured import names_of, varying
from attnprof.render.formats import notes, render

ENDS = "by the ends of both intervals"


def point(mechanism, median, *, n=2048, peak=1000, half=0.02, **more):
    """A measured point; its interval is the median ± a share."""
    asked = {"batch_size": 1, "d_model": 64, "num_heads": 2, "head_dim": 32, "dtype": "float32",
             "device": "cpu", "phase": "forward", "causal": False}  # fmt: skip
    times = {"median_s": median, "ci_low_s": median * (1 - half), "ci_high_s": median * (1 + half)}
    if more.get("skipped"):
        times = {}
    return ProfileRecord(
        mechanism=mechanism, seq_len=n, peak_bytes_measured=peak, **{**asked, **times, **more}
    )


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([point("sdpa", 2e-3, peak=2048)],
         "sdpa takes 2.00 ms (1.96 ms to 2.04 ms) and 2.00 KiB of memory at its peak"),
        ([point("standard", 1.0), point("sdpa", 0.41, peak=100)],
         (f"sdpa takes 0.41× the time of standard (0.39× to 0.43× {ENDS}) "
          "and 0.10× its peak memory")),
        ([point("standard", 1.0), point("sdpa", 0.004, peak=13_000)],
         (f"sdpa takes 0.0040× the time of standard (0.0038× to 0.0042× {ENDS}) "
          "and 13× its peak memory")),
        ([point("standard", 1.0, peak=None), point("sdpa", 0.99)],
         f"sdpa takes as long as standard within the noise (0.95× to 1.03× {ENDS})"),
        ([point("a", 1.0), point("b", 1.0)],
         (f"b takes as long as a within the noise (0.96× to 1.04× {ENDS}) "
          "and needs the same peak memory")),
        ([point("a", 1.0, peak=None), point("b", 2.0), point("c", 3.0)],
         f"b takes 2.00× the time of a (1.92× to 2.08× {ENDS}); fastest of 3: a"),
        ([point("a", 3.0, peak=None), point("b", 2.0), point("c", 2.01)],
         f"b takes 0.67× the time of a (0.64× to 0.69× {ENDS}); fastest of 3: b or c"),
        ([point("a", 1.0), point("b", 1.0, skipped="out of memory")],
         "a takes 1.00 s (980 ms to 1.02 s) and 1000 B of memory at its peak"),
    ],
)  # fmt: skip
def test_the_fastest_is_held_against_the_first(records, said):
    assert answer(records) == f"At 2,048 tokens {said}."
    assert answer([point("a", 1.0, skipped="out of memory")]) == ""


def test_points_are_named_by_what_is_not_the_same_in_all():
    records = [
        point("longformer", 1.0, params={"window": w, "bias": False}, d_model=width, n=n)
        for w, width, n in ((4, 64, 128), (8, 64, 128), (8, 128, 256))
    ]
    assert varying(records) == ["d_model"]
    assert names_of(records) == [f"longformer window={w}" for w in (4, 8, 8)]
    assert answer(records).startswith(
        "At 128 tokens and d_model 64, longformer window=8 takes as long"
    )


def test_reasons_and_notes_are_told_once_for_all_they_are_of():
    skipped = "cannot be causal: it mixes all tokens"
    records = [
        point(name, 1.0, n=n, **more)
        for n in (64, 128)
        for name, more in (
            ("standard", {"noisy": "noisy: x", "checked": "float64; sdpa"}),
            ("neural", {"skipped": f"neural {skipped}"}), ("we", {"skipped": f"we {skipped}"}),
        )
    ]  # fmt: skip
    report = Report("profile", records, {"answer": "At last."}, {})
    text = render(report, "table")
    assert text.startswith("At last.\n")
    assert text.count(skipped) == 1
    assert f"not measured: neural, we at 64 and 128 tokens: {skipped}" in text
    assert "No row has a value for FLOPs (formula), " in text  # instead of an empty column
    assert "\nFLOPs (formula)" not in text
    assert notes(report) == [
        "standard at 64 and 128 tokens: the output agrees with a run in float64 and sdpa",
        "standard at 64 and 128 tokens: noisy: x",
    ]
