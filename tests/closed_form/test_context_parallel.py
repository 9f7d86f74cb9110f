"""What ranks send each other: by formula, by count of real sends, by published numbers."""

import json
import random
import subprocess
import sys
from itertools import permutations
from math import ceil
from pathlib import Path

import pytest

from attnprof import registry
from attnprof.closed_form.context_parallel import (
    ALL_TO_ALL,
    GATHERING,
    PASSING,
    RING,
    Link,
    Transfer,
    rank_records,
    tokens_for_overlap,
    transfers,
)
from attnprof.errors import RequestError
from attnprof.workload import Workload
from tests.closed_form.rank_runs import BLOCK, HEADS, KEY_HEADS, STATES, TOKENS, TOP, WIDTH, WINDOWS

WORKLOAD = Workload(TOKENS, HEADS, WIDTH, causal=True, dtype="float64")
GROUPED = WORKLOAD.with_(num_kv_heads=KEY_HEADS)
RANKS = (2, 4)
#: Llama 3.1 8B's attention over a million tokens.
LLAMA = Workload(2**20, 32, 128, num_kv_heads=8, causal=True, dtype="bfloat16")


def by_method(mechanism, workload, ranks):
    rows = transfers(registry.get(mechanism[0], **mechanism[1]), workload, ranks)
    return {one.method: one for one in rows if isinstance(one, Transfer)}


def sent(name, workload, ranks, method, phase="forward", **params):
    return by_method((name, params), workload, ranks)[method].sent(phase)


@pytest.fixture(scope="module")
def runs():
    """What the cases send on two ranks and on four."""
    script = [sys.executable, str(Path(__file__).with_name("rank_runs.py")), *map(str, RANKS)]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(zip(RANKS, json.loads(done.stdout), strict=True))


@pytest.fixture(params=RANKS)
def run(request, runs):
    return request.param, runs[request.param]


def test_processes_that_share_a_sequence_compute_what_one_does(run):
    _, cases = run
    assert len(cases) == 9 + len(STATES)
    assert {name: case["off"] for name, case in cases.items() if case["off"] > 1e-12} == {}


def test_a_ring_and_an_exchange_of_heads_send_what_the_formulas_say(run):
    ranks, cases = run
    for name, method, phase in (
        ("ring", RING, "forward"),
        ("ring, backward", RING, "backward"),
        ("all-to-all", ALL_TO_ALL, "forward"),
    ):
        assert cases[name]["sent"] == [sent("gqa", GROUPED, ranks, method, phase)] * ranks


def test_a_window_sends_what_later_ranks_see(run):
    ranks, cases = run
    narrow = WORKLOAD.with_(num_heads=KEY_HEADS)
    for name, (window, first) in WINDOWS.items():
        most = sent("sliding-window", narrow, ranks, RING, window=window, first_tokens=first)
        assert max(cases[name]["sent"]) == most
        assert cases[name]["sent"][-1] == 0


def rows_needed(tokens, ranks, reach, first, causal):
    """By pair of ranks: the rows of the one that the other sees, token by token."""
    needed = {}
    for source, rank in permutations(range(ranks), 2):
        seen = {
            at for at in range(source * tokens, (source + 1) * tokens)
            for token in range(rank * tokens, (rank + 1) * tokens)
            if (abs(token - at) <= reach or at < first or (token < first and not causal))
            and (at <= token or not causal)
        }  # fmt: skip
        needed[source, rank] = len(seen)
    return needed


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_sends_the_rows_that_others_see_and_gradients_of_what_it_received(causal):
    draw = random.Random(0)
    for _ in range(300):
        ranks, share, first = draw.randint(1, 7), draw.randint(1, 6), draw.choice((0, 1, 2, 5, 9))
        window = draw.randint(1, 2 * share * ranks if draw.random() < 0.3 else 2 * share)
        tokens = draw.randint(ranks * share - ranks + 1, ranks * share)
        needed = rows_needed(share, ranks, window - 1, first, causal)
        sent, received = (
            [sum(n for pair, n in needed.items() if pair[side] == rank) for rank in range(ranks)]
            for side in (0, 1)
        )
        work = Workload(tokens, 2, 3, causal=causal)
        for name, more in (
            ("sliding-window", {"window": window, "first_tokens": first}),
            ("longformer", {"window": max(1, window - 1), "global_tokens": first}),
        ):
            if name == "longformer" and window == 1:
                continue
            row = by_method((name, more), work, ranks)[RING]
            both = map(sum, zip(sent, received, strict=True))
            rows = [count // (2 * 2 * 3 * 4) for count in (row.forward, row.backward)]
            assert rows == [max(sent), max(both)], (name, more, work, ranks)


@pytest.mark.parametrize("name", ["moba", "nsa", "topk", "dsa"])
def test_a_rank_sends_a_sum_of_every_block_that_its_tokens_lie_in(name):
    draw = random.Random(0)
    for _ in range(50):
        ranks, share, stride = draw.randint(1, 6), draw.randint(1, 9), draw.randint(1, 5)
        work = Workload(ranks * share - draw.randrange(min(ranks, share)), 2, 3, causal=True)
        more = {
            "moba": {"block": stride},
            "nsa": {"block": 4 * stride, "pool": 2 * stride, "stride": stride},
        }.get(name, {"index_block": stride, "index_dim": 4})
        row, sums = {"moba": (12, 6), "nsa": (12, 12), "topk": (12, 4), "dsa": (76, 4)}[name]
        if stride == 1 and name in ("topk", "dsa"):  # a key a token
            row, sums = row + sums, 0
        shares = (range(rank * share, (rank + 1) * share) for rank in range(ranks))
        blocks = max(len({token // stride for token in tokens}) for tokens in shares)
        rows = share * row + blocks * sums
        assert sent(name, work, ranks, RING, **more) == (ranks - 1) * rows * 4, (work, ranks, more)


def test_sums_of_blocks_go_around_beside_the_rows_that_are_picked_by_them(run):
    ranks, cases = run
    most = sent("moba", GROUPED, ranks, RING, top=TOP, block=BLOCK)
    assert cases["blocks"]["sent"] == [most] * ranks
    without = sent("gqa", GROUPED, ranks, RING)
    blocks = (ranks - 1) * TOKENS // ranks // BLOCK
    assert most - without == blocks * KEY_HEADS * WIDTH * 8
    strides = sent("nsa", GROUPED, ranks, RING, block=BLOCK, pool=BLOCK, stride=BLOCK, top=TOP)
    assert strides - without == 2 * (most - without)  # of keys and of values
    pooled = sent("topk", GROUPED, ranks, RING, index_block=BLOCK, index_dim=5)
    assert pooled - without == blocks * 5 * 8


def test_states_that_are_handed_on_have_the_formulas_size(run):
    ranks, cases = run
    for name in STATES:
        state = sent(name, WORKLOAD.with_(batch_size=2), ranks, PASSING)
        assert cases[name]["sent"] == [state] * (ranks - 1) + [0]


def test_gathered_states_bring_what_tokens_do_to_earlier_ones(run):
    ranks, cases = run
    wide = WORKLOAD.with_(value_head_dim=WIDTH + 1)
    for name in ("gated-deltanet", "gla"):
        gathered = sent(name, wide, ranks, GATHERING)
        assert cases[f"gathered {name}"]["sent"] == [gathered] * ranks


def test_a_million_tokens_on_eight_ranks_send_the_published_amounts():
    ring, heads = (sent("gqa", LLAMA, 8, method) for method in (RING, ALL_TO_ALL))
    assert ring == 7 * 2**17 * 8 * 2 * 128 * 2 == 3.5 * 2**30
    assert heads == (2 * 32 + 2 * 8) * 128 * 2**17 * 2 * 7 // 8
    assert round(heads / 2**30, 1) == 2.2
    ungrouped = LLAMA.with_(num_kv_heads=None)
    assert sent("gated-deltanet", ungrouped, 8, GATHERING) == 28 * 2**20
    assert sent("gated-deltanet", ungrouped, 8, PASSING) == 2 * 2**20


def test_ring_rows_outweigh_states_from_the_published_length_on():
    state = Workload(8 * 1024, 32, 128)  # entries alike: both in float32
    rows = Workload(8 * 1024, 16, 256, num_kv_heads=2)
    gathered = sent("gated-deltanet", state, 8, GATHERING)
    assert sent("gqa", rows, 8, RING) == gathered
    assert sent("gqa", rows.with_(seq_len=8 * 1023), 8, RING) < gathered


@pytest.mark.parametrize(("bandwidth", "tokens"), [(450e9, 549.7), (50e9, 4947.5)])
def test_tokens_for_overlap_are_the_published_ones(bandwidth, tokens):
    link = Link(bandwidth, 989.5e12)
    full = LLAMA.with_(causal=False)
    overlap = tokens_for_overlap(RING, registry.get("gqa"), full, 8, link)
    assert overlap == ceil(tokens) == ceil(989.5e12 * 2 * 8 / (2 * 32 * bandwidth))
    masked = tokens_for_overlap(RING, registry.get("gqa"), LLAMA, 8, link)
    assert 2 * tokens - 2 <= masked <= 2 * tokens + 2  # half of the pairs


def test_latents_travel_whatever_heads_there_are():
    deepseek = Workload(2**20, 128, 128, dtype="bfloat16")
    assert sent("mla", deepseek, 8, RING) == 7 * 2**17 * (512 + 64) * 2
    assert sent("mla", deepseek, 8, RING, impl="expanded") == 7 * 2**17 * 128 * (192 + 128) * 2


def test_without_a_mask_sums_are_added_up_by_all_ranks():
    whole = Workload(4096, 8, 64)
    state = 8 * 64 * 65 * 4
    assert sent("linear", whole, 8, PASSING) == 2 * 7 * state // 8
    assert sent("linear", whole.with_(causal=True), 8, PASSING) == state


@pytest.mark.parametrize("name", registry.names())
def test_every_mechanism_has_a_form_or_says_why_not(name):
    mechanism = registry.get(name)
    records = rank_records(mechanism, Workload(2**16, 8, 64), 8)
    assert {row.method for row in records} & {RING, PASSING}
    for row in records:
        if row.skipped:
            assert len(row.skipped) > 30
        else:
            assert row.bytes_sent > 0
            assert row.expression


@pytest.mark.parametrize(("tokens", "ranks"), [(2**14, 8), (2**14, 3), (100, 3), (5, 8), (64, 1)])
@pytest.mark.parametrize("name", ["gqa", "mla", "gated-deltanet", "linear", "sliding-window"])
def test_the_closed_forms_give_the_numbers(name, tokens, ranks):
    import sympy

    sizes = {"B": 2, "N": tokens, "h": 8, "d": 64, "P": ranks}
    workload = Workload(tokens, 8, 64, 2, causal=True, phase="train")
    for row in rank_records(registry.get(name), workload, ranks):
        if row.expression is None:  # none of a state that one rank keeps, or a wider window
            assert row.skipped or ranks == 1 or (name, tokens < 128) == ("sliding-window", True)
            continue
        form = sympy.sympify(row.expression, locals={n: sympy.Symbol(n) for n in sizes})
        assert form.subs(sizes) == row.bytes_sent


def test_ten_million_tokens_on_1024_ranks_are_counted():
    (row,) = (
        row for row in rank_records(registry.get("gqa"), Workload(10**7, 32, 128), 1024)
        if row.method == RING
    )  # fmt: skip
    assert row.tokens_per_rank == 9766
    assert row.bytes_sent == 1023 * 9766 * 32 * 256 * 4


@pytest.mark.parametrize("name", registry.names())
def test_one_rank_sends_nothing(name):
    for phase, causal in (("forward", False), ("prefill", True), ("train", False)):
        rows = rank_records(registry.get(name), Workload(64, 8, 64, phase=phase, causal=causal), 1)
        assert not any(row.bytes_sent for row in rows)


def test_a_decoding_step_is_refused():
    with pytest.raises(RequestError, match="decode"):
        rank_records(registry.get("gqa"), Workload(64, 8, 64, phase="decode"), 2)
