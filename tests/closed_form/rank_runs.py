"""Ranks that share a sequence, as processes over gloo: what they send, and how far off they are.

``python rank_runs.py RANKS ...`` prints, for every number of ranks and every case, the bytes that
each rank has sent and the largest difference between the ranks' rows and those of the whole
sequence, computed at once.
"""

import json
import multiprocessing
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import attnprof
from attnprof.blocks.recurrence import recurrence, token_row

TOKENS, HEADS, KEY_HEADS, WIDTH = 16, 4, 2, 6
STATES = (
    "gated-deltanet", "kimi-delta", "mamba2", "retnet", "gla", "lightning", "linear", "performer",
    "taylor-efficient",
)  # fmt: skip
#: Layers whose convolutions need a few rows of the rank before, which are no part of the state.
CONVOLVED = ("gated-deltanet", "kimi-delta", "mamba2")
#: Tokens of a block whose keys are summed, and blocks that a row picks.
BLOCK, TOP = 2, 3
WINDOWS = {"window 5": (5, 0), "window 3, first 1": (3, 1), "window 7": (7, 0)}


class Ranks:
    """This process among the others; every send is counted."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks, self.sent = rank, ranks, 0

    def own(self, x, dim):
        return x.chunk(self.ranks, dim)[self.rank]

    def send(self, x, to):
        self.sent += x.numel() * x.element_size()
        return dist.isend(x.contiguous(), to)

    def receive(self, like, source):
        rows = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.recv(rows, source)
        return rows

    def around(self, x):
        """Send to the next rank, and receive the same from the one before."""
        sent = self.send(x, (self.rank + 1) % self.ranks)
        received = self.receive(x, (self.rank - 1) % self.ranks)
        sent.wait()
        return received

    def exchange(self, parts, likes):
        """Send a part to every other rank; what they sent, by rank."""
        others = [rank for rank in range(self.ranks) if rank != self.rank]
        sent = [self.send(parts[rank], rank) for rank in others]
        received = {rank: self.receive(likes[rank], rank) for rank in others}
        for one in sent:
            one.wait()
        return {**received, self.rank: parts[self.rank]}


def given():
    """Queries, keys, values and a gradient of the whole sequence, the same on every rank."""
    torch.manual_seed(0)
    return [torch.randn(1, heads, TOKENS, WIDTH, dtype=torch.float64)
            for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)]  # fmt: skip


def seen(ranks, origin, tokens):
    """Which pairs of this rank's rows and those of another are at or below the diagonal."""
    rows = torch.arange(tokens)
    return (origin * tokens + rows) <= (ranks.rank * tokens + rows).unsqueeze(1)


def scores_of(ranks, q, k, origin):
    scores = q / WIDTH**0.5 @ k.repeat_interleave(HEADS // KEY_HEADS, 1).mT
    return scores.masked_fill(~seen(ranks, origin, q.shape[2]), -torch.inf)


def ring(ranks):
    """Keys and values go around; softmax is joined by the logarithms of its sums."""
    q, k, v, _ = (ranks.own(x, 2) for x in given())
    out, total = torch.zeros_like(q), torch.full((*q.shape[:3], 1), -torch.inf, dtype=q.dtype)
    rows = torch.cat([k, v], -1)
    for step in range(ranks.ranks):
        origin = (ranks.rank - step) % ranks.ranks
        if origin <= ranks.rank:
            keys, values = rows.split(WIDTH, -1)
            scores = scores_of(ranks, q, keys, origin)
            part = scores.logsumexp(-1, keepdim=True)
            mixed = scores.softmax(-1) @ values.repeat_interleave(HEADS // KEY_HEADS, 1)
            both = torch.logaddexp(total, part)
            out, total = out * (total - both).exp() + mixed * (part - both).exp(), both
        if step + 1 < ranks.ranks:
            rows = ranks.around(rows)
    return out, total


def ring_forward(ranks):
    out, _ = ring(ranks)
    return out - ranks.own(attnprof.attend("gqa", *given()[:3], causal=True), 2)


def ring_backward(ranks):
    """Keys and values go around once more, and with them their gradients, which then go home."""
    out, total = ring(ranks)
    ranks.sent = 0
    q, k, v, grad = (ranks.own(x, 2) for x in given())
    rows, q_grad, gathered, home = torch.cat([k, v], -1), torch.zeros_like(q), None, None
    for step in range(ranks.ranks):
        origin = (ranks.rank - step) % ranks.ranks
        if step:
            rows = ranks.around(rows)
        keys, values = (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in rows.split(WIDTH, -1))
        weights = (scores_of(ranks, q, rows[..., :WIDTH], origin) - total).exp()
        inner = weights * (grad @ values.mT - (grad * out).sum(-1, keepdim=True)) / WIDTH**0.5
        q_grad += inner @ keys
        both = torch.cat([inner.mT @ q, weights.mT @ grad], -1)
        both = both.unflatten(1, (KEY_HEADS, -1)).sum(2)
        if step == 0:
            home = both
        else:
            gathered = both if gathered is None else ranks.around(gathered) + both
    home = home + ranks.around(gathered)
    whole = [x.requires_grad_() for x in given()[:3]]
    attnprof.attend("gqa", *whole, causal=True).backward(given()[3])
    gradients = q_grad, *home.split(WIDTH, -1)
    return torch.cat(
        [(x - ranks.own(y.grad, 2)).flatten() for x, y in zip(gradients, whole, strict=True)]
    )


def heads_exchanged(ranks):
    """Tokens are exchanged for heads, and back."""
    q, k, v, _ = given()
    columns = [ranks.own(x, 2) for x in (q, k, v)]
    each, group = HEADS // ranks.ranks, HEADS // KEY_HEADS

    def part(x, rank):
        if x.shape[1] == HEADS:
            return x[:, rank * each : (rank + 1) * each]
        first, last = rank * each // group, ((rank + 1) * each - 1) // group
        return x[:, first : last + 1]

    here = []
    for x in columns:
        parts = [part(x, rank) for rank in range(ranks.ranks)]
        received = ranks.exchange(parts, [parts[ranks.rank]] * ranks.ranks)
        here.append(torch.cat([received[rank] for rank in range(ranks.ranks)], 2))
    out = attnprof.attend("gqa", *here, causal=True)
    parts = list(out.chunk(ranks.ranks, 2))
    received = ranks.exchange(parts, parts)
    out = torch.cat([received[rank] for rank in range(ranks.ranks)], 1)
    return out - ranks.own(attnprof.attend("gqa", q, k, v, causal=True), 2)


def window(ranks, width, first):
    """The latest rows of earlier ranks, and the first tokens, go to those that see them."""
    q, k, v = (x[:, :KEY_HEADS] for x in given()[:3])
    tokens, reach = TOKENS // ranks.ranks, width - 1

    def needed(source, rank):
        """Which tokens of a rank a later one sees."""
        places = range(source * tokens, (source + 1) * tokens)
        return [at for at in places if at >= rank * tokens - reach or at < first]

    both = torch.cat([k, v], -1)
    later = {
        rank: ranks.send(both[:, :, places], rank)
        for rank in range(ranks.rank + 1, ranks.ranks) if (places := needed(ranks.rank, rank))
    }  # fmt: skip
    places = {rank: needed(rank, ranks.rank) for rank in range(ranks.rank)}
    rows = [ranks.receive(both[:, :, at], rank) for rank, at in places.items() if at]
    for one in later.values():
        one.wait()
    mine = list(range(ranks.rank * tokens, (ranks.rank + 1) * tokens))
    keys, values = torch.cat([*rows, both[:, :, mine]], 2).split(WIDTH, -1)
    at = torch.tensor([*(place for some in places.values() for place in some), *mine])
    token = torch.tensor(mine).unsqueeze(1)
    hidden = (at > token) | ((at < token - reach) & (at >= first))
    scores = (q[:, :, mine] / WIDTH**0.5 @ keys.mT).masked_fill(hidden, -torch.inf)
    whole = attnprof.attend("sliding-window", q, k, v, causal=True, window=width,
                            first_tokens=first)  # fmt: skip
    return scores.softmax(-1) @ values - whole[:, :, mine]


def blocks_picked(ranks):
    """Sums of every block go around first, so that rows can pick; then keys and values do."""
    q, k, v, _ = given()
    rows, keys, values = (ranks.own(x, 2) for x in (q, k, v))

    def from_all(x):
        parts = {ranks.rank: x}
        for step in range(1, ranks.ranks):
            x = ranks.around(x)
            parts[(ranks.rank - step) % ranks.ranks] = x
        return torch.cat([parts[rank] for rank in range(ranks.ranks)], 2)

    sums, both = keys.unflatten(2, (-1, BLOCK)).sum(3), torch.cat([keys, values], -1)
    sums, both = (from_all(x).repeat_interleave(HEADS // KEY_HEADS, 1) for x in (sums, both))
    token = ranks.own(torch.arange(TOKENS), 0).unsqueeze(1)
    block, first = token - token % BLOCK, torch.arange(0, TOKENS, BLOCK)
    liked = (rows @ sums.mT).masked_fill(first > block, -torch.inf)
    best = liked.masked_fill(first == block, torch.inf).topk(TOP, -1).indices
    picked = torch.zeros_like(liked, dtype=bool).scatter_(-1, best, True)
    hidden = ~picked.repeat_interleave(BLOCK, -1) | (torch.arange(TOKENS) > token)
    keys, values = both.split(WIDTH, -1)
    scores = (rows / WIDTH**0.5 @ keys.mT).masked_fill(hidden, -torch.inf)
    whole = attnprof.attend("moba", q, k, v, causal=True, top=TOP, block=BLOCK)
    return scores.softmax(-1) @ values - ranks.own(whole, 2)


@torch.no_grad()
def state_passed(ranks, name):
    """Each rank decodes its tokens, by the layer's own step, from the state that it is handed."""
    torch.manual_seed(0)
    more = {"conv": None} if name in CONVOLVED else {}
    layer = attnprof.build(name, d_model=HEADS * WIDTH, num_heads=HEADS, seq_len=TOKENS, **more)
    layer = layer.double()
    x = torch.randn(2, TOKENS, HEADS * WIDTH, dtype=torch.float64)
    whole = layer(x, causal=True)
    state, tokens = layer.init_state(2), TOKENS // ranks.ranks
    names = [name for name, value in vars(state).items() if isinstance(value, torch.Tensor)]
    if ranks.rank:
        for one in names:
            setattr(state, one, ranks.receive(getattr(state, one), ranks.rank - 1))
        if hasattr(state, "length"):
            state.length = ranks.rank * tokens
    rows = [layer.step(x_t, state)[0] for x_t in ranks.own(x, 1).unbind(1)]
    if ranks.rank + 1 < ranks.ranks:
        for one in names:
            ranks.send(getattr(state, one), ranks.rank + 1).wait()
    return torch.stack(rows, 1) - ranks.own(whole, 1)


def states_gathered(ranks, *, delta, by_channel):
    """Each rank sends everyone its state and what its tokens do to an earlier one."""
    torch.manual_seed(0)
    shape, value_width = (HEADS, TOKENS, WIDTH), WIDTH + 1
    q, k, v = (torch.randn(*shape[:2], n, dtype=torch.float64) for n in (WIDTH, WIDTH, value_width))
    k = torch.nn.functional.normalize(k, dim=-1)
    g = -torch.rand(HEADS, TOKENS, WIDTH if by_channel else 1, dtype=torch.float64)
    beta = torch.rand(HEADS, TOKENS, 1, dtype=torch.float64) if delta else None
    whole = recurrence(q, k, v, g, beta, rows=4, form="chunkwise", by_channel=by_channel)
    operands = [None if x is None else ranks.own(x, 1) for x in (q, k, v, g, beta)]

    def run(state, values):
        q, k, _, g, beta = operands
        rows = [
            token_row(state, *(None if x is None else x[:, t : t + 1].clone()
                               for x in (q, k, values, g, beta)))
            for t in range(values.shape[1])
        ]  # fmt: skip
        return torch.cat(rows, 1)

    state = q.new_zeros(HEADS, WIDTH, value_width)
    run(state, operands[2])
    if delta:
        change = torch.eye(WIDTH, dtype=q.dtype).repeat(HEADS, 1, 1)
        run(change, torch.zeros_like(operands[1]))
    else:
        change = operands[3].sum(1).exp()  # of a channel or a head
    both = torch.cat([state.flatten(), change.flatten()])
    received = ranks.exchange([both] * ranks.ranks, [both] * ranks.ranks)
    earlier = torch.zeros_like(state)
    for rank in range(ranks.rank):
        its, change_then = received[rank].split([state.numel(), change.numel()])
        moved = change_then.view_as(change)
        earlier = (moved @ earlier if delta else moved.unsqueeze(-1) * earlier) + its.view_as(state)
    return run(earlier, operands[2]) - ranks.own(whole, 1)


CASES = {
    "ring": ring_forward,
    "ring, backward": ring_backward,
    "all-to-all": heads_exchanged,
    "blocks": blocks_picked,
    **{name: lambda ranks, one=one: window(ranks, *one) for name, one in WINDOWS.items()},
    **{name: lambda ranks, name=name: state_passed(ranks, name) for name in STATES},
    "gathered gated-deltanet": lambda ranks: states_gathered(ranks, delta=True, by_channel=False),
    "gathered gla": lambda ranks: states_gathered(ranks, delta=False, by_channel=True),
}


def work(rank, ranks, folder):
    """Run all cases as one of the ranks."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks,
        timeout=timedelta(seconds=30),
    )  # fmt: skip
    results = {}
    for name, case in CASES.items():
        here = Ranks(rank, ranks)
        difference = case(here)
        results[name] = here.sent, float(difference.detach().abs().max())
    Path(folder, str(rank)).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(ranks):
    """Bytes and differences by case."""
    forks = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            forks.Process(target=work, args=(rank, ranks, folder), daemon=True)
            for rank in range(ranks)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        results = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(ranks)]
    return {name: {"sent": [results[rank][name][0] for rank in range(ranks)],
                   "off": max(results[rank][name][1] for rank in range(ranks))}
            for name in CASES}  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps([on_ranks(int(ranks)) for ranks in sys.argv[1:]]))
