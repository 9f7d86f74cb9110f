"""SHE, HE, WE and ME (002, Eq 23 to 29)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from attnprof.costs import Cost, CostTable, Number, is_plain
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Abilities, Mechanism, Published, Variant, rows
from attnprof.mechanisms.extractors.convolution import Convolution, convolution, is_direct
from attnprof.mechanisms.extractors.products import Products, chunk_of, matrix_products, triangle
from attnprof.mechanisms.extractors.published import published_counts
from attnprof.workload import Workload

FFT_RULE = (
    "an FFT of F real points counts F·log2 F multiplications and 3/2·F·log2 F additions "
    "(radix 2), F the smallest power of two not below 2n"
)


@dataclass(frozen=True, kw_only=True)
class Extractor(Mechanism):
    """e_i = sum over j <= i of x_j with the weight of their distance; no softmax, no heads.

    ``num_heads`` only splits d_model. The window l is the length it was built for, in a workload
    ``seq_len``; it is causal by nature, so ``causal`` changes nothing.
    """

    impl: str = "auto"

    document: ClassVar[str] = "002"
    family: ClassVar[str] = "extractor"
    memory_order: ClassVar[str] = "N"
    abilities: ClassVar[Abilities] = Abilities(attend=False, needs_seq_len=True)
    same_as = ("", {"impl": "direct"})
    impls: ClassVar[tuple[str, ...]] = ("auto", "direct", "fft")
    #: a matrix, a vector or a scalar for each distance
    weights: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.impl not in self.impls:
            raise RequestError(
                f"{self.name} has no impl '{self.impl}': {closest(self.impl, list(self.impls))}"
            )

    @property
    def maps(self) -> tuple[str, ...]:
        """The layer's linear maps, d_model to d_model each."""
        return ()

    def weight_shape(self, window: Number, d: Number) -> tuple[Number, ...]:
        """Shape of w_1 … w_l."""
        return {"matrix": (window, d, d), "vector": (window, d), "scalar": (window,)}[self.weights]

    def sizes(self, b: Number, n: Number, d: Number) -> Convolution:
        """Sizes of the extraction part."""
        return Convolution(b, n, d, d if self.weights == "vector" else 1)

    def chosen(self, n: Number) -> Number:
        """1 for direct sums by blocks, 0 for the FFT; ``auto`` decides by length."""
        return is_direct(self.impl, n)

    # -- what is executed --------------------------------------------------------------
    def cost(self, workload: Workload, scope: str = "layer") -> CostTable:
        """Like the base's; names the rule where an FFT may run."""
        w = workload
        table = super().cost(w, scope)
        if self.weights == "matrix" or w.phase == "decode":
            return table
        direct = self.chosen(w.seq_len)
        fft = not is_plain(direct) or not direct
        return replace(table, notes=(*table.notes, FFT_RULE)) if fft else table

    def write(self, tape: Tape, workload: Workload, scope: str) -> Tensor:
        """Input map, extraction, adjustment, output map."""
        w = workload
        x = tape.input(w.batch_size, w.seq_len, w.d_model)
        weight = tape.parameter(*self.weight_shape(w.seq_len, w.d_model))
        y = self._map(tape, "in_proj", x)
        extracted = self.extract(tape, w, y, weight)
        if y is not x:
            tape.free(y)
        return self._rest(tape, x, extracted)

    def extract(self, tape: Tape, workload: Workload, x: Tensor, weight: Tensor) -> Tensor:
        """The extraction part, one way or, with symbols, both under their condition."""
        w = workload
        sizes = self.sizes(w.batch_size, w.seq_len, w.d_model)
        filters = tape.view(weight, w.seq_len, sizes.groups)
        return convolution(tape, sizes, x, filters, self.impl)

    def _map(self, tape: Tape, name: str, x: Tensor) -> Tensor:
        if name not in self.maps:
            return x
        d = x.shape[-1]
        bias = tape.parameter(d) if self.bias else None
        return tape.linear(MAP_TITLES[name], x, tape.parameter(d, d), bias)

    def _rest(self, tape: Tape, x: Tensor, extracted: Tensor) -> Tensor:
        if "adj_proj" not in self.maps:
            return extracted
        adjustment = self._map(tape, "adj_proj", x)
        adjusted = tape.mul("adjusted", adjustment, extracted)
        tape.free(adjustment, extracted)
        if "out_proj" not in self.maps:
            return adjusted
        out = self._map(tape, "out_proj", adjusted)
        tape.free(adjusted)
        return out

    def decode(self, tape: Tape, workload: Workload, scope: str) -> Tensor:
        """One token: its row joins the cache, the direct sum runs over all rows there."""
        w = workload
        b, t, d = w.batch_size, w.seq_len, w.d_model
        x = tape.input(b, 1, d)
        y = self._map(tape, "in_proj", x)
        tape.record("append to cache", y.shape, Cost(bytes_moved=2 * y.size))
        if y is not x:
            tape.free(y)
        past = tape.constant(b, t, d)
        weight = tape.parameter(*self.weight_shape(t, d))
        extracted = self._newest(tape, past, weight)
        return self._rest(tape, x, extracted)

    def _newest(self, tape: Tape, past: Tensor, weight: Tensor) -> Tensor:
        b, t, d = past.shape
        if self.weights == "matrix":
            rows, maps = tape.view(past, 1, b, t * d), tape.view(weight, 1, t * d, d)
            return tape.view(tape.bmm("extraction", rows, maps), b, 1, d)
        if self.weights == "vector":
            products = tape.mul("products", past, weight)
            out = tape.sum("extraction", products, (b, 1, d))
            tape.free(products)
            return out
        stretched = tape.constant(b, 1, t)
        return tape.bmm("extraction", stretched, past)

    def state_entries(self, workload: Workload) -> Number:
        """The rows so far; the window bounds them."""
        return workload.batch_size * workload.seq_len * workload.d_model

    # -- what is defined ---------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Direct sums over t tokens for row t (002, Tables 3 to 6)."""
        w, d = workload, workload.d_model
        tokens = w.batch_size * rows(w)
        seen = w.batch_size * (w.seq_len if w.phase == "decode" else triangle(w.seq_len))
        if "in_proj" in self.maps:
            writer.dots(MAP_TITLES["in_proj"], tokens * d, tokens * d * d)
        each = d * d if self.weights == "matrix" else d
        writer.dots("extraction", tokens * d, seen * each)
        if "adj_proj" in self.maps:
            writer.dots(MAP_TITLES["adj_proj"], tokens * d, tokens * d * d)
            writer.stage("adjusted", Cost(multiplications=tokens * d), tokens, d)
        if "out_proj" in self.maps:
            writer.dots(MAP_TITLES["out_proj"], tokens * d, tokens * d * d)

    def published(self) -> tuple[Published, ...]:
        """Tables 3 to 6 of 002; they print the whole layer with its output map."""
        whole = not getattr(self, "extract_only", False) and getattr(self, "output", True)
        return published_counts(self.name) if whole else ()


MAP_TITLES = {"in_proj": "input", "adj_proj": "adjustment", "out_proj": "output"}


@dataclass(frozen=True, kw_only=True)
class Adjusted(Extractor):
    """Those whose extraction is multiplied by x W^adj and mapped by W^out.

    ``output=false`` leaves W^out out; ``extract_only`` leaves the extraction part alone.
    """

    output: bool = True
    extract_only: bool = False

    @property
    def maps(self) -> tuple[str, ...]:
        """The layer's linear maps, in the order they run."""
        if self.extract_only:
            return ()
        return ("adj_proj", "out_proj") if self.output else ("adj_proj",)


@dataclass(frozen=True, kw_only=True)
class SHE(Adjusted):
    """Super high-performance Extractor: a matrix for each distance (002, Eq 23 to 25).

    ``products`` takes 16 distances in one product (more above 65,536 tokens, for at most 4096
    products), ``direct`` one; ``auto`` is ``products``.
    """

    name: ClassVar[str] = "she"
    title: ClassVar[str] = "Super high-performance Extractor (SHE)"
    time_order: ClassVar[str] = "N^2"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({}, "N^2", "N^2", "above 65,536 tokens a product takes N/4096 distances at once"),
    )
    impls: ClassVar[tuple[str, ...]] = ("auto", "products", "direct")
    weights: ClassVar[str] = "matrix"

    def chosen(self, n: Number) -> Number:
        """Distances of one product."""
        return 1 if self.impl == "direct" else chunk_of(n)

    def extract(self, tape: Tape, workload: Workload, x: Tensor, weight: Tensor) -> Tensor:
        """All products."""
        b, n, d = x.shape
        return matrix_products(tape, Products(b, n, d, self.chosen(n)), x, weight)


@dataclass(frozen=True, kw_only=True)
class HE(Adjusted):
    """Higher-performance Extractor: a vector for each distance, after W^in (002, Eq 27, 28)."""

    name: ClassVar[str] = "he"
    title: ClassVar[str] = "Higher-performance Extractor (HE)"
    time_order: ClassVar[str] = "N log N"
    weights: ClassVar[str] = "vector"

    @property
    def maps(self) -> tuple[str, ...]:
        """The layer's linear maps, in the order they run."""
        return ("in_proj", *super().maps)


@dataclass(frozen=True, kw_only=True)
class WE(Adjusted):
    """Worthwhile Extractor: a vector for each distance (002, Eq 26)."""

    name: ClassVar[str] = "we"
    title: ClassVar[str] = "Worthwhile Extractor (WE)"
    time_order: ClassVar[str] = "N log N"
    weights: ClassVar[str] = "vector"


@dataclass(frozen=True, kw_only=True)
class ME(Extractor):
    """Minimalist Extractor: a scalar for each distance and nothing else (002, Eq 29)."""

    name: ClassVar[str] = "me"
    title: ClassVar[str] = "Minimalist Extractor (ME)"
    time_order: ClassVar[str] = "N log N"
    weights: ClassVar[str] = "scalar"


MECHANISMS = (SHE, HE, WE, ME)
