"""What ``blocks/hashing.py`` and ``blocks/hashed_*.py`` execute, line by line: shared parts.

Element sizes: places and ranks are 8 bytes, buckets 4, a comparison's result 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnprof.costs import Cost, Number, at_least_one, floor_div
from attnprof.counting.engine import Storage, Tensor, product
from attnprof.counting.hashed import HASHED, ROWS, Plan
from attnprof.counting.tape import Tape, product_cost

ADD, MUL, DIV = Cost(additions=1), Cost(multiplications=1), Cost(divisions=1)
EXP, OTHER = Cost(exponentials=1), Cost(other=1)


@dataclass
class Indexes:
    """As in ``blocks/hashing.py``."""

    order: Tensor
    lower: Tensor
    upper: Tensor


@dataclass
class Writer:
    """Writes on a tape; ``half`` is half the number of buckets, 0 for one bucket."""

    tape: Tape
    plan: Plan
    rounds: int
    half: Number
    head_dim: Number
    sees_itself: bool

    # -- operations ----------------------------------------------------------------------
    def width(self, size: int) -> int:
        """Bytes of an integer; elements where elements are counted."""
        return size if self.tape.item_size > 1 else 1

    def part(self, *shape: Number, size: int | None = None) -> Tensor:
        """A slice of something that is held elsewhere."""
        item = None if size is None else self.width(size)
        return self.tape.constant(*shape, item_size=item)

    def empty(self, name: str, *shape: Number, size: int | None = None) -> Tensor:
        """Memory nothing is written to yet."""
        item = self.tape.item_size if size is None else self.width(size)
        out = Tensor(shape, Storage(product(shape) * item), item)
        self.tape.record(name, shape, Cost(), out.storage.size)
        return out

    def new(
        self, name: str, shape: Sequence[Number], *reads: Tensor, cost: Cost | None = None,
        size: int | None = None, workspace: Number = 0,
    ) -> Tensor:  # fmt: skip
        """An operation with a result of its own; ``cost`` in all."""
        item = self.tape.item_size if size is None else self.width(size)
        return self.tape.emit(
            name, tuple(shape), cost or Cost(), reads, item_size=item, workspace=workspace
        )

    def inplace(self, name: str, x: Tensor, *reads: Tensor, each: Cost | None = None) -> None:
        """Read and write x; ``each`` an entry of it."""
        moved = Cost(bytes_moved=2 * x.size + sum(t.size for t in reads))
        self.tape.record(name, x.shape, (each or Cost()) * x.count + moved)

    def into(self, name: str, x: Tensor, *reads: Tensor, cost: Cost | None = None) -> None:
        """Overwrite x; ``cost`` in all."""
        moved = Cost(bytes_moved=x.size + sum(t.size for t in reads))
        self.tape.record(name, x.shape, (cost or Cost()) + moved)

    def chosen(self, name: str, shape: Sequence[Number], indexes: Number) -> Tensor:
        """Rows picked by so many indexes: only what is picked is read."""
        source = self.part(*shape)
        return self.new(name, shape, source, self.part(indexes, size=8))

    def placed(self, name: str, x: Tensor, indexes: Number) -> None:
        """Rows written to so many indexes."""
        self.into(name, x, x, self.part(indexes, size=8))

    # -- hashing and sorting ---------------------------------------------------------------
    def hash_into(self) -> None:
        """Buckets of a sequence, block by block."""
        n = self.plan.seq_len
        if isinstance(self.half, int) and self.half == 0:
            self.into("one bucket", self.part(self.rounds, n, size=4))
            return
        whole = floor_div(n, HASHED)
        rest = n - whole * HASHED
        for times, tokens in ((whole, HASHED), (at_least_one(rest), rest)):
            with self.tape.repeat(times):
                index = self.hashed(tokens)
                self.into("buckets", self.part(self.rounds, tokens, size=4), index)
                self.tape.free(index)

    def hashed(self, n: Number) -> Tensor:
        """The largest of [xR; -xR] of n rows: products, absolute values, comparisons."""
        tape, d, directions = self.tape, self.head_dim, self.rounds * self.half
        matrix = [self.part(n, d), self.part(directions, d)]
        turned = self.new("rotated", (n, directions), *matrix, cost=product_cost(n, d, directions))
        entries, column = Cost(other=turned.count), (n, self.rounds)
        sizes = self.new("rotated, sizes", turned.shape, turned, cost=entries)
        values = self.new("largest", column, sizes, cost=entries)
        index = self.new("direction", column, size=8)
        tape.free(sizes, values)
        signed = self.new("largest, signed", column, turned, index)
        below = Cost(other=signed.count)
        negative = self.new("is it negative", column, signed, cost=below, size=1)
        tape.free(signed, turned)
        second = self.new("second half", column, negative, size=8)
        self.inplace("bucket", index, second)
        tape.free(second, negative)
        return index

    def indexes(self) -> Indexes:
        """Sort the buckets, find each token's rank, choose rows of the masks' table."""
        tape, plan, n = self.tape, self.plan, self.plan.seq_len
        each = (self.rounds, n)
        sort = n * self.width(8)  # places to begin with
        values = self.new("sort", each, self.part(*each, size=4), size=4, workspace=sort)
        order = self.new("sort, places", each, size=8)
        padded = self.new("places, filled up", (plan.places(self.rounds),), size=8)
        self.into("store places", self.part(*each, size=8), order)
        tape.free(order)
        edges = self.new("bucket numbers", (plan.num_buckets + 1,), size=4)
        numbers = self.new("repeated", (self.rounds, plan.num_buckets + 1), edges, size=4)
        bounds = self.new("bounds of buckets", numbers.shape, values, numbers, size=8)
        tape.free(numbers)
        bucket = self.new("bucket of each place", each, values, size=8)
        tape.free(values, edges)
        tokens = self.new("places in order", (n,), size=8)
        begin = self.new("begin of the bucket", each, bounds, bucket, size=8)
        rank = self.new("rank", each, tokens, begin, size=8)
        tape.free(tokens, begin)
        inside = self.new("rank in the chunk", each, rank, size=8)
        return self._masks(padded, bucket, bounds, rank, inside)

    def _masks(
        self, padded: Tensor, bucket: Tensor, bounds: Tensor, rank: Tensor, inside: Tensor
    ) -> Indexes:
        tape, plan = self.tape, self.plan
        base = self.new("rows of a block", (plan.rows,), size=8)
        for name in ("row", "row, negative", "first table row"):
            self.inplace(name, base)
        upper = self.new("upper table row", base.shape, base, size=8)
        rest = None if plan.causal else self._ends(bucket, bounds, inside)
        source = self.part(self.rounds, plan.rows, size=8)
        every = self.new("upper table rows", source.shape, source, size=8)
        tape.free(upper)
        if rest:
            for name, reads in (("upper end", [rest]), ("upper end, own", [])):
                self.inplace(name, self.part(*rank.shape, size=8), *reads)
            tape.free(rest)
        tape.free(bucket, bounds)
        self.inplace("with the chunk before", inside)
        reach = self.new("reach back", rank.shape, rank, inside, size=8)
        tape.free(rank, inside)
        lower = self.new("lower table row", (self.rounds, plan.rows), base, size=8)
        self.inplace("lower end", self.part(*reach.shape, size=8), reach)
        tape.free(base, reach)
        return Indexes(padded, lower, every)

    def _ends(self, bucket: Tensor, bounds: Tensor, inside: Tensor) -> Tensor:
        tape, each = self.tape, bucket.shape
        self.inplace("next bucket", bucket)
        later = self.new("end of the bucket", each, bounds, bucket, size=8)
        tokens = self.new("places in order", each[1:], size=8)
        self.inplace("left in the bucket", later, tokens)
        tape.free(tokens)
        chunk = self.new("left in the chunk", each, inside, size=8)
        rest = self.new("reach ahead", each, later, chunk, size=8)
        tape.free(chunk, later)
        return rest

    # -- what forward and backward share -----------------------------------------------------
    def table(self) -> Tensor:
        """Zeros between infinities."""
        line = self.new("mask table", (3 * self.plan.window,))
        self.into("mask table, zeros", self.part(self.plan.window))
        return line

    def joined(self, parts: int) -> tuple[Tensor, Tensor]:
        """Queries, keys and so many more, side by side; the keys' divisors."""
        n, d = self.plan.seq_len, self.head_dim
        x = self.part(n, d)
        squares = Cost(multiplications=x.count, additions=x.count, reduction_outputs=n, other=n)
        norms = self.new("norms", (n, 1), x, cost=squares)
        self.inplace("norms, floor", norms, each=OTHER)
        self.inplace("norms times sqrt d", norms, each=MUL)
        out = self.empty("side by side", n, (2 + parts) * d)
        self.into("store queries", x, x)
        self.into("keys", x, x, norms, cost=DIV * x.count)
        for _ in range(parts):
            self.into("store columns", x, x)
        return out, norms

    def scores(self, blocks: Number) -> Tensor:
        """Masked scores of a group of blocks."""
        tape, w, d = self.tape, self.plan.window, self.head_dim
        rows = blocks * ROWS
        scores = self.chosen("mask before", (rows, w), rows)
        after = self.chosen("mask after", (rows, w), rows)
        self.inplace("mask", scores, after, each=ADD)
        tape.free(after)
        operands = [self.part(rows, d), self.part(blocks, w, d)]
        cost = product_cost(rows, d, w) + ADD * scores.count
        self.into("scores", scores, scores, *operands, cost=cost)
        if not self.sees_itself:
            self.into("itself", self.part(rows))
        return scores
