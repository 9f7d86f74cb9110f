"""Reports of commands that take long, as nobody measured or derived them: each number is another.

The requests are factorial, the names as long as those of people's own modules may be.
"""

from dataclasses import asdict, fields, replace
from itertools import product

from attnprof import units
from attnprof.gate.changes import causes
from attnprof.record import (
    BaselineRecord,
    CalibrationRecord,
    CheckRecord,
    DeriveRecord,
    DoctorRecord,
    GrowthRecord,
    HistoryRecord,
    PredictRecord,
    ProfileRecord,
    Report,
    VerificationRecord,
)  # fmt: skip

SEVEN = (
    "standard", "sdpa", "linear", "performer", "taylor-direct", "taylor-efficient", "taylorshift",
)  # fmt: skip
LENGTHS, D_MODELS = (1024, 16_384), (512, 1024)
FACTORIAL = f"-a {','.join(SEVEN)} --seq 1024,16384"
MADE_ON = {"device_name": "a processor", "threads": 2, "torch": "2.13"}
#: A class of 62 letters in a file of 42.
LONG = (
    "own_module_with_a_rather_long_file_name.py:"
    "GroupedQueryAttentionWithRotaryEmbeddingsAndSlidingWindows"
)
FORMULA = "20*B*N**2*d*h + 12*B*N**2*h + 8*B*N*d**2*h**2 + 5*B*N"


def profiled(command: str = "sweep", names: tuple[str, ...] = SEVEN) -> Report:
    """The factorial request, measured by nobody: each number is another one."""
    records = []
    for place, (name, n, width) in enumerate(product(names, LENGTHS, D_MODELS)):
        numbers = {
            item.name: (1234.5 + place) * 1e-6 if item.metadata["format"] == "time"
            else 0.12345 + place / 1000 if item.metadata["format"] in ("percent", "number")
            else 12_345_678_901 * (place + 1) + len(item.name)
            for item in fields(ProfileRecord) if units.is_numeric(item.metadata["format"])
        }  # fmt: skip
        sizes = {"batch_size": 1, "seq_len": n, "d_model": width, "num_heads": 8,
                 "head_dim": width // 8}  # fmt: skip
        records.append(ProfileRecord(
            mechanism=name, **{**numbers, **sizes, "compile_s": None}, dtype="float32",
            device="cpu", phase="forward", causal=False, bound="memory",
        ))  # fmt: skip
    roofline = {"flops_per_s": {"float32": 1e11}, "bytes_per_s": 1e10, "device": "a processor",
                "source": "calibrated"}  # fmt: skip
    return Report(command, records, {"roofline": roofline}, MADE_ON)


def grown() -> Report:
    records = [
        GrowthRecord(
            mechanism=name, variant=name, scope="core", phase="forward", causal=False, num_heads=1,
            head_dim=64, dtype="float32", quantity=quantity, kind="formula", source="closed form",
            claimed_order="N log N", declared_order="N log N", claimed_exponent=1.1,
            found_exponent=1.25 + place / 100, verdict="grows faster", expected=True,
            seq_lens=list(LENGTHS), reason="the peak is in maps, first block",
        )
        for place, (name, quantity) in enumerate(
            product((*SEVEN, "longformer impl=dense-mask"), ("flops", "peak_bytes", "matmul_flops"))
        )
    ]  # fmt: skip
    summary = {"seq_lens": list(LENGTHS), "unexpected": [], "miscounted": []}
    return Report("list --verify", records, summary)


def calibrated() -> Report:
    return Report("calibrate", [
        CalibrationRecord(
            device="cpu", device_name="AMD EPYC 7763 64-Core Processor", threads=16, dtype=dtype,
            flops_per_s=rate, bytes_per_s=1.23e10, source="calibrated", operations=1234,
            repeatability=0.0312,
        )
        for dtype, rate in (("float32", 1.2345e12), ("bfloat16", 2.3456e11))
    ])  # fmt: skip


def predicted() -> Report:
    def operations(at: float) -> list[dict[str, object]]:
        names = {"_scaled_dot_product_flash_attention_for_cpu": [128, 16384, 16384, 128, 128],
                 "native_layer_norm_backward": [16384, 1024], "Python functions": []}  # fmt: skip
        return [
            {"name": name, "sizes": sizes, "calls": 123 + place, "part": "forward",
             "time_s": at / 10**place, "bound": ("compute", "memory", "overhead")[place]}
            for place, (name, sizes) in enumerate(names.items())
        ]  # fmt: skip

    records = [
        PredictRecord(
            mechanism=name, scope="layer", phase="train", causal=False, batch_size=8,
            seq_len=seq_len, d_model=1024, num_heads=16, head_dim=64, dtype="float32",
            device="cpu", time_s=1.2345 + place, ci_low_s=1.0123 + place,
            ci_high_s=1.5432 + place, peak_bytes_predicted=12_345_678_901 + 10**9 * place,
            bound=("compute", "memory")[place % 2], operations=operations(1.1111 + place),
        )
        for place, (seq_len, name) in enumerate(product((512, 16384), SEVEN))
    ]  # fmt: skip
    skipped = replace(records[0], time_s=None, skipped="float64 was not calibrated (float32)")
    summary = {
        "made_of": "AMD EPYC 7763 64-Core Processor, 16 threads: single operations measured",
        "interval": "low and high: ends of an interval of 95 %", "predicted": len(records),
        "answer": "predicted to be fastest: linear at 512 to 16,384 tokens",
    }  # fmt: skip
    return Report("predict", [*records, skipped], summary)


def examined() -> Report:
    records = [
        DoctorRecord(check="torch's FLOP counter", found="works: 1024 FLOPs on fake tensors",
                     status="ok"),
        DoctorRecord(check="memory on CPU", status="broken", found="counts 0 bytes seen by the "
                     "profiler where 32768 are due", advice="profile leaves peak_bytes_measured "
                     "empty"),
    ]  # fmt: skip
    return Report("doctor", records, {"problems": ["memory on CPU"]})


def derived(name: str = LONG) -> Report:
    """Two phases at a shape, with operations of long names."""
    at = {"B": 1, "N": 4096, "h": 8, "d": 64}
    phases, records = {}, []
    for phase, one in (("forward", 1), ("backward", 3)):
        records += [
            DeriveRecord(
                name=name, phase=phase, quantity=quantity, expression=form, latex="",
                method="symbolic", domain=["N, h, d >= 2"], value=value,
            )
            for quantity, form, value in (
                ("multiplications", FORMULA, 22_288_531_456 * one),
                ("flops", FORMULA, 47_812_345_678),
                ("bytes_moved", f"4*N + {FORMULA}", 30_875_103_232 * one),
                ("peak_bytes", f"Max({FORMULA}, 4*B*N*d*h + 8*N)", 2_717_908_992),
                ("parameters", "4*d**2*h**2 + 6*d*h", 1_051_648),
            )
        ]  # fmt: skip
        names = [f"an_operation_of_the_users_own_library_number_{n}_backward" for n in range(4)]
        operations = [
            {"operation": its, "calls": n + one, "flops": FORMULA, "flops_value": 10**9 * (n + one)}
            for n, its in enumerate(["bmm", *names])
        ]
        peak = {
            "bytes": 2_717_908_992, "operation": "mul", "line": "own_module.py:20",
            "regimes": [{"expression": FORMULA, "value": 2_717_908_992}],
        }  # fmt: skip
        phases[phase] = {
            "answer": "FLOPs grow with N**2", "domain": ["N, h, d >= 2"], "method": "symbolic",
            "verified_at": [{"B": 1, "N": n, "h": 5, "d": 50} for n in (8, 64, 6028, 42_436)],
            "uncounted": [], "notes": [], "peak": peak, "operations": operations,
        }  # fmt: skip
    return Report("derive", records, {"name": name, "at": at, "phases": phases})


def cases(code: str) -> list[str]:
    """Two phases, lengths and widths of a module; a mechanism's parameter where it has one."""
    more = "" if ":" in code else " window=64"
    return [
        f"{code}[{phase} N={n} d_model={width} h=8{more}]"
        for phase, n, width in product(("forward", "train"), LENGTHS, D_MODELS)
    ]


def recorded(mechanism: str = "longformer") -> Report:
    """A baseline of a module and a mechanism; one case could not be run."""
    records = [
        BaselineRecord(
            case=case, request={"batch_size": 1}, formulas={"flops": FORMULA},
            times_s=[[(1234.5 + place) * 1e-6]],
            metrics={"flops": 10**9 * (place + 1) + 7, "peak_bytes": 123_456_789 * (place + 1),
                     "dispatched_operations": 60 + place},
        )
        for place, case in enumerate([*cases(LONG), *cases(mechanism)])
    ]  # fmt: skip
    broken = BaselineRecord(case="neural[forward N=8 d_model=32 h=2]", error="it has no module")
    return Report("baseline", [*records, broken], {})


def checked() -> Report:
    """All metrics of those cases, compared: one counts more, one takes longer."""
    records = []
    for place, case in enumerate([*cases(LONG), *cases("longformer")]):
        metrics = ("flops", "bytes_moved", "peak_bytes", "dispatched_operations")
        rows = [(name, "B" if "bytes" in name else "", 10**9 * (place + 2) + len(name))
                for name in metrics]  # fmt: skip
        records += [
            CheckRecord(case=case, metric=name, unit=unit, baseline=value, current=value + place,
                        ratio=1.0, verdict="regressed" if place == 1 else "ok",
                        why=f"+ {FORMULA} FLOPs", place="own_module.py:15")
            for name, unit, value in rows
        ]  # fmt: skip
        records += [
            CheckRecord(case=case, metric="time", unit="s", baseline=0.0123, current=0.0125 + place,
                        ratio=1.016, ci_low=1.01, ci_high=1.02, pairs=40, noise=0.012,
                        wall_ratio=1.015, verdict="ok"),
            CheckRecord(case=case, metric="formula:flops", baseline=FORMULA, verdict="ok",
                        current=f"{FORMULA} + 8*B*N"),
        ]  # fmt: skip
    summary = {
        "mode": "against", "base": "origin/main", "head": "a1b2c3d", "rule": "default",
        "counts": {"ok": 92, "regressed": 4}, "exit_code": 1, "notes": [],
        "causes": [asdict(cause) for cause in causes(records, {}, {}, None)],
    }  # fmt: skip
    return Report("check", records, summary)


def followed() -> Report:
    """Levels that begin somewhere, of the times of two machines."""
    records = [
        HistoryRecord(
            case=case, metric=metric, machine=machine, at=f"2026-0{place + 1}-01T10:00:00",
            commit=f"a1b2c3d{place} A commit whose first line says at some length what it is for",
            file="run.json", run=place, value=value, unit=unit, level=value, change_point=True,
            ratio=1.25 + place / 100,
        )
        for case in cases(LONG)[:2]
        for place, (metric, unit, value, machine) in enumerate([
            ("flops", "", 47_812_345_678, ""), ("peak_bytes", "B", 123_456_789, ""),
            ("time", "s", 0.0123, "a processor of 64 cores"), ("time", "s", 0.0321, "another one"),
        ])
    ]  # fmt: skip
    return Report("history", records, {"series": 8, "runs": 4, "change_points": 8})


def verified() -> Report:
    """A table of formulas: one matches, one is not ours, one is too small."""
    records = [
        VerificationRecord(
            place=place, of=LONG, phase="forward", causal=False, quantity=quantity, kind="derived",
            convention="flops", up_to="exact", printed=printed, ours=FORMULA, verdict=verdict,
            method="symbolic", why="" if verdict == "match" else "the printed formula omits 5*B*N",
            values=[{"sizes": {"B": 1, "N": n, "h": 8, "d": 64}, "printed": 10**9 * n + 1,
                     "ours": 10**9 * n + 2} for n in LENGTHS],
        )
        for place, quantity, printed, verdict in (
            ("Table 1, row 2", "flops", FORMULA, "match"),
            ("Table 1, row 3", "multiplications", "4*B*N**2*d*h", "differs"),
            ("Appendix B", "additions", f"3*B*N + {FORMULA}",
             "differs"),
        )
    ]  # fmt: skip
    return Report("verify-formula", records, {"answer": "1 of 3 formulas match"})
