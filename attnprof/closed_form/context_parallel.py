"""Bytes that ranks send each other when a sequence's tokens are divided among them.

Each of P ranks holds N/P consecutive tokens of all heads. Of other ranks' tokens it needs what a
decoder keeps, so sizes come from the mechanism's decoding state: rows of a cache travel around a
ring, a state of constant size is handed from rank to rank. All-to-all exchanges the split by tokens
for a split by heads, and back. Sources: ring attention (Liu et al., arXiv:2310.01889), all-to-all
(Jacobs et al., arXiv:2309.14509). Entry point: :func:`rank_records`.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from attnprof.algebra.expressions import expression_text, symbol
from attnprof.algebra.values import evaluate
from attnprof.blocks.latent_rows import LatentRows
from attnprof.blocks.recurrent_layer import Recurrence
from attnprof.closed_form.cost_records import identity, symbolic, symbols_of
from attnprof.costs import Number, ceil_div, is_plain, maximum, minimum
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.mechanisms.decay import FixedDecay
from attnprof.ops.caches import Cache, CountedCaches, CountedSums
from attnprof.ops.counter import Counter
from attnprof.ops.layer import LayerSizes
from attnprof.ops.tensor import Tensor
from attnprof.record import RanksRecord
from attnprof.workload import Workload

RING, ALL_TO_ALL = "ring", "all-to-all"
PASSING, GATHERING = "state passing", "state gathering"
#: The most doublings of the tokens per rank, from one, that :func:`tokens_for_overlap` tries.
_POWERS = 33


@dataclass(frozen=True)
class KeptBytes:
    """A decoder's state in bytes: rows of the ``first`` and ``latest`` tokens, or a fixed state.

    ``latest`` None: all tokens have rows. ``sums``: the tokens of a block, and its sums' bytes.
    """

    row_bytes: Number = 0
    first: Number = 0
    latest: Number | None = None
    state_bytes: Number = 0
    sums: tuple[tuple[int, Number], ...] = ()


@dataclass(frozen=True)
class Transfer:
    """Bytes that the busiest rank sends in a layer, in ``steps`` sends one after another."""

    method: str
    forward: Number
    backward: Number
    steps: Number

    def sent(self, phase: str) -> Number:
        """Return the bytes of a phase; ``train`` is forward and backward."""
        both = {"forward": self.forward, "backward": self.backward}
        return both.get(phase, self.forward + self.backward)


def kept_bytes(mechanism: Mechanism, w: Workload) -> KeptBytes:
    """Return the bytes that a mechanism's decoder keeps, by its initial state."""
    sizes = LayerSizes(w.num_heads, w.head_dim, w.kv_heads, w.value_width, w.seq_len)
    state = mechanism.init_state(sizes, CountedCaches(Counter(w.item_size), w))
    parts = [state] if isinstance(state, Cache | Tensor) else [*vars(state).values()]
    caches = {id(x): x for x in parts if isinstance(x, Cache)}.values()
    state_bytes = sum(x.size_bytes for x in parts if isinstance(x, Tensor))
    if caches:
        width = sum(cache.batch * cache.width for cache in caches)
        cache = next(iter(caches))
        kept_sums = (x for x in parts if isinstance(x, CountedSums))
        sums = tuple((x.block, x.batch * x.width * w.item_size) for x in kept_sums)
        return KeptBytes(width * w.item_size, cache.first, cache.latest, sums=sums)
    if isinstance(state_bytes, int) and not state_bytes:  # the first token makes the caches
        return KeptBytes(mechanism.state_entries(w.with_(seq_len=1)) * w.item_size)
    return KeptBytes(state_bytes=state_bytes)


def transfers(mechanism: Mechanism, w: Workload, ranks: Number) -> Iterator[Transfer | str]:
    """Yield the ways in which ranks can share a workload's tokens, or why one is impossible.

    The busiest rank sends so many bytes in one layer, from queries, keys and values of its
    tokens to their outputs.
    """
    mechanism = mechanism.form_for(w)
    tokens = ceil_div(w.seq_len, ranks) if is_plain(ranks) else w.seq_len / ranks
    if mechanism.not_split or not mechanism.abilities.decode:
        why = mechanism.not_split or "keeps nothing of earlier tokens: it has no decoding"
        yield f"{RING}: {why}"
    else:
        yield from _relays(mechanism, w, tokens, ranks)
    try:
        yield _all_to_all(mechanism, w, tokens, ranks)
    except RequestError as refusal:
        yield f"{ALL_TO_ALL}: {refusal}"


def _relays(mechanism: Mechanism, w: Workload, tokens: Number, ranks: Number) -> Iterator[Any]:
    """Yield a ring of rows and sums of blocks, or a state that is handed on or gathered.

    Backward, gradients of states go back the same way; rows go around again with their gradients.
    """
    try:
        decoder = kept_bytes(mechanism, w)
    except RequestError as refusal:
        yield f"{RING}: {refusal}"
        return
    others = ranks - 1
    if decoder.row_bytes != 0:
        rows = _rows_sent(decoder, tokens, ranks, causal=w.causal)
        blocks = sum(_blocks_touched(tokens, block, ranks) * size for block, size in decoder.sums)
        forward, backward = (count * decoder.row_bytes for count in rows)
        steps = others
        if decoder.latest is not None and not decoder.first and is_plain(tokens, ranks):
            steps = min(others, ceil_div(decoder.latest - 1, tokens))
        yield Transfer(RING, forward + others * blocks, backward + 2 * others * blocks, steps)
        return
    state = decoder.state_bytes
    if w.causal or isinstance(mechanism, Recurrence):
        handed_on = state if others != 0 else 0
        yield Transfer(PASSING, handed_on, handed_on, others)
        gathered = others * (state + _transition_bytes(mechanism, w))
        yield Transfer(GATHERING, gathered, others * state, others)
    else:  # every rank needs the sum over all ranks: reduced in parts, then gathered
        part = ceil_div(state, ranks) if is_plain(state) else state / ranks
        summed = 2 * others * part
        yield Transfer(PASSING, summed, summed, 2 * others)


def _rows_sent(decoder: KeptBytes, tokens: Number, ranks: Number, *, causal: bool) -> list[Number]:
    """Return the rows that the busiest rank sends forward, and backward with gradients.

    In a ring all rows go on P - 1 times, and backward as many gradients, too. Of a window, others
    see the ``latest`` less one, on one side if causal; the ``first`` tokens go to every rank and,
    without a mask, see all rows. Backward, a rank also sends gradients of the rows it received.
    """
    others, first = ranks - 1, decoder.first
    if decoder.latest is None:
        return [others * tokens, 2 * others * tokens]
    reach = decoder.latest - 1
    if not is_plain(tokens, ranks):
        return _rows_of_short_windows(reach, first, tokens, others, causal=causal)
    if first > tokens:  # more than one rank's: all rows of the first rank go everywhere
        return [others * tokens, (1 if causal else 2) * others * tokens]
    # sums along the ranks bend next to these: where a window no longer reaches an end
    bends = 0, reach // tokens, others - reach // tokens, (reach + first) // tokens
    near = {bend + more for bend in bends for more in (-1, 0, 1, 2)}
    counted = [_rows_of_rank(rank, others - rank, reach, first, tokens, causal=causal)
               for rank in near if 0 <= rank <= others]  # fmt: skip
    return [max(sent for sent, _ in counted), max(map(sum, counted))]


def _rows_of_rank(
    before: int, after: int, reach: int, first: int, tokens: int, *, causal: bool
) -> tuple[int, int]:
    """Return the rows that a rank sends and receives, of so many ranks ``before`` and ``after`` it.

    The ``first`` tokens are all of the first rank.
    """
    sent, received = min(reach, after * tokens), min(reach + first, before * tokens)
    whole, rest = divmod(reach, tokens)  # ranks that see all rows of this one; rows the next sees
    if not before and whole < after:
        sent += min(first, tokens - rest) + (after - whole - 1) * first
    if not causal and first and before:
        sent += tokens + min(reach, (before - 1) * tokens)
    elif not causal:
        sent += min(reach, before * tokens)
    if not causal:
        received += after * tokens if first and not before else min(reach, after * tokens)
    return sent, received


def _rows_of_short_windows(
    reach: Number, first: Number, tokens: Number, others: Number, *, causal: bool
) -> list[Number]:
    """Return the rows sent forward and backward if a rank's share exceeds the window."""
    both = reach * minimum(2, others)  # sides, or what is sent and received
    if causal:
        sent = reach + others * first
        return [sent, maximum(sent, both + first) if first else both]
    if not first:
        return [both, 2 * both]
    sent = maximum(reach + others * first, tokens + reach * minimum(2, others - 1))
    back = tokens + first + reach * minimum(4, 2 * others - 1)
    return [sent, maximum(reach + others * (first + tokens), back)]


def _blocks_touched(tokens: Number, block: int, ranks: Number) -> Number:
    """Return the most blocks that a rank's tokens lie in: a block at a border is of two ranks."""
    if not is_plain(tokens, ranks):
        return ceil_div(tokens, block)
    starts = (rank * tokens % block for rank in range(min(ranks, block)))
    return max(ceil_div(start + tokens, block) for start in starts)


def _transition_bytes(mechanism: Mechanism, w: Workload) -> Number:
    """Return the bytes of the map that a rank's tokens apply to an earlier state, if it is learned.

    The delta rule has a matrix a head, gates a decay a channel or head; sums have none.
    """
    if not isinstance(mechanism, Recurrence) or isinstance(mechanism, FixedDecay):
        return 0
    width = mechanism.decay_width(w.head_dim)
    entries = w.head_dim * w.head_dim if mechanism.delta else width
    return w.batch_size * w.num_heads * entries * max(w.item_size, 4)


def _all_to_all(mechanism: Mechanism, w: Workload, tokens: Number, ranks: Number) -> Transfer:
    """Return the exchange of tokens for heads before the core, and of heads for tokens after it.

    If there are fewer heads than ranks, a head's rows go to several ranks. Raises RequestError if
    heads cannot be divided.
    """
    tensors = _head_widths(mechanism, w)
    counts = [heads for heads, _ in tensors]
    if is_plain(ranks, *counts):
        if w.num_heads % ranks:
            raise RequestError(f"{ranks} ranks do not divide {w.num_heads} heads")
        for heads in counts:
            if heads % ranks and ranks % heads:
                raise RequestError(f"{ranks} ranks do not divide {heads} heads of keys")
    entries: Number = 0
    for heads, width in tensors:
        if is_plain(heads, ranks):
            share = max(heads // ranks, 1)
        elif heads is w.num_heads:
            share = heads / ranks
        else:
            share = 1 if is_plain(heads) and heads == 1 else maximum(heads / ranks, 1)
        entries = entries + width * share
    sent = (ranks - 1) * w.batch_size * tokens * entries * w.item_size
    return Transfer(ALL_TO_ALL, sent, sent, 2)


def _head_widths(mechanism: Mechanism, w: Workload) -> list[tuple[Number, Number]]:
    """Return heads and head width of each tensor that a core takes or returns."""
    h, dk, dv = w.num_heads, w.head_dim, w.value_width
    if isinstance(mechanism, LatentRows):  # latents and shared keys are one head, of all
        c, key, value = mechanism.widths(dk)
        return [(h, key + mechanism.rope_dim), (1, c + mechanism.rope_dim), (h, value)]
    if mechanism.has_own_layer():
        raise RequestError("it has no heads that are independent of each other")
    heads = {letter: mechanism.projected_heads(letter) for letter in "qk"}
    tensors = [(h if heads["q"] is None else heads["q"], dk), (h, dv)]
    if not mechanism.shares_queries:
        tensors.append((w.kv_heads if heads["k"] is None else heads["k"], dk))
    if not mechanism.shares_rows:
        tensors.append((w.kv_heads, dv))
    if isinstance(mechanism, Recurrence):  # gates of outputs stay where these end
        sizes = LayerSizes(h, dk, h, dv)
        gates = [name for name in mechanism.gate_maps if name != "g"]
        tensors += [(h, mechanism.gate_width(name, sizes)) for name in gates]
    return tensors


# -- time ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Link:
    """Bytes a second that a rank sends, and FLOP/s of its products."""

    bytes_per_s: float
    flops_per_s: float


def tokens_for_overlap(
    method: str, mechanism: Mechanism, w: Workload, ranks: int, link: Link
) -> int | None:
    """Return the fewest tokens a rank whose products take as long as the transfer meanwhile.

    In a ring, a step's rows travel while a rank computes on the rows before: all but the first of P
    equal parts of its products. Other methods have all products. None if no length is enough.
    """

    def hides_transfer(tokens: int) -> bool:
        at = w.with_(seq_len=tokens * ranks)
        possible = [x for x in transfers(mechanism, at, ranks) if isinstance(x, Transfer)]
        sent = next((x.sent(w.phase) for x in possible if x.method == method), inf)
        flops = _products(mechanism, at) / ranks
        if method == RING:
            flops *= (ranks - 1) / ranks
        return sent / link.bytes_per_s <= flops / link.flops_per_s

    enough = next((2**power for power in range(_POWERS) if hides_transfer(2**power)), None)
    if enough is None:
        return None
    return bisect_left(range(enough + 1), True, enough // 2 + (enough > 1), key=hides_transfer)


def _products(mechanism: Mechanism, w: Workload) -> float:
    """Return FLOPs of a layer's products between tokens; of a layer without a core the square part.

    If N tokens take c(N) = a N² + b N, this is c(2N)/2 - c(N) = a N².
    """
    if mechanism.abilities.attend:
        return float(mechanism.cost(w, "core").matmul_flops)
    once, twice = (mechanism.cost(w.with_(seq_len=n)).matmul_flops
                   for n in (w.seq_len, 2 * w.seq_len))  # fmt: skip
    return float(twice / 2 - once)


# -- records ---------------------------------------------------------------------------
def rank_records(
    mechanism: Mechanism, w: Workload, ranks: int, link: Link | None = None
) -> list[RanksRecord]:
    """Return a record a method by which ranks can share the tokens, or why they cannot.

    Raises RequestError for a decoding step.
    """
    if w.phase == "decode":
        raise RequestError(
            "--ranks: ranks share the tokens of a prompt or a training step, not of decode: type "
            "--phase forward or train"
        )
    who: dict[str, Any] = {**identity(mechanism, w, "layer"), "ranks": ranks,
                           "tokens_per_rank": ceil_div(w.seq_len, ranks)}  # fmt: skip
    try:
        mechanism.check(w, "layer")
    except RequestError as refusal:
        return [RanksRecord(**who, method=RING, skipped=str(refusal))]
    w = w if mechanism.kv_heads is None else w.with_(num_kv_heads=mechanism.kv_heads)
    forms, records = _forms(mechanism, w, ranks), []
    sizes = {name: getattr(w, field) for name, field in symbols_of(w).items()}
    for one in transfers(mechanism, w, ranks):
        if isinstance(one, str):
            method, _, why = one.partition(": ")
            records.append(RanksRecord(**who, method=method, skipped=why))
            continue
        sent, form = one.sent(w.phase), forms.get(one.method)
        holds = form is not None and evaluate(form, {**sizes, "P": ranks}) == sent
        row = RanksRecord(
            **who, method=one.method, bytes_sent=sent, steps=one.steps,
            expression=expression_text(form) if holds else None,
        )  # fmt: skip
        if link is not None:
            tokens = tokens_for_overlap(one.method, mechanism, w, ranks, link) if ranks > 1 else 1
            row = replace(row, send_time_s=sent / link.bytes_per_s, overlap_tokens=tokens)
        records.append(row)
    return records


def _forms(mechanism: Mechanism, w: Workload, ranks: int) -> dict[str, Any]:
    """Return the closed forms in B N h d P (and g) by method, for P that divides heads.

    A share of the tokens is N/P, or that rounded up if so many ranks do not divide the tokens.
    """
    import sympy

    count, at = symbol("P"), symbolic(w)
    share = {at.seq_len: count * ceil_div(at.seq_len, count)} if w.seq_len % ranks else {}
    forms = transfers(mechanism.form_for(w), at, count)
    return {
        one.method: sympy.sympify(one.sent(w.phase)).xreplace(share)
        for one in forms if isinstance(one, Transfer)
    }  # fmt: skip
