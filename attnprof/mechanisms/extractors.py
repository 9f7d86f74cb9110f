"""SHE, HE, WE and ME (002, Eq 23 to 29), causal by nature, with the forms of Tables 3 to 6.

In the printed forms, which stand untouched, ``n`` is the document's l (a training sequence) or t
(the token decoded).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof import costs
from attnprof.blocks.causal_convolution import causal_convolution, matrix_convolution
from attnprof.costs import Number, exact_div
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism, Variant
from attnprof.mechanisms.standard import layer_count
from attnprof.ops.functional import padded_length, square_root
from attnprof.ops.layer import Definition, LayerSizes, Weight
from attnprof.workload import Published, Workload, rows

#: a printed form in n, d
_Form = Callable[[Number, Number], Number]
QUANTITIES = ("multiplications", "additions", "divisions", "exponentials", "parameters")


def _nothing(n: Number, d: Number) -> Number:
    return 0 * n * d


def _halves(form: _Form) -> _Form:
    """Return a form printed with halves, given doubled so that whole numbers stay exact."""
    return lambda n, d: exact_div(form(n, d), 2)


#: Tables 3 and 4: multiplications, additions, parameters of one sequence of length l
TRAINING: dict[str, tuple[str, _Form, _Form, _Form]] = {
    "she": (
        "002-T3",
        _halves(lambda n, d: n**2 * d**2 + 5 * n * d**2 + 2 * n * d),
        _halves(lambda n, d: n**2 * d**2 + 5 * n * d**2 - 6 * n * d),
        lambda n, d: n * d**2 + 2 * d**2,
    ),
    "he": (
        "002-T4",
        _halves(lambda n, d: n**2 * d + 3 * n * d + 6 * n * d**2),
        _halves(lambda n, d: 6 * n * d**2 + n**2 * d - 7 * n * d),
        lambda n, d: n * d + 3 * d**2,
    ),
    "we": (
        "002-T4",
        _halves(lambda n, d: n**2 * d + 3 * n * d + 4 * n * d**2),
        _halves(lambda n, d: 4 * n * d**2 + n**2 * d - 5 * n * d),
        lambda n, d: n * d + 2 * d**2,
    ),
    "me": (
        "002-T4",
        _halves(lambda n, d: n**2 * d + n * d),
        _halves(lambda n, d: n**2 * d - n * d),
        lambda n, _: n,
    ),
}
#: Tables 5 and 6: multiplications, additions of token number t
INFERENCE: dict[str, tuple[str, _Form, _Form]] = {
    "she": (
        "002-T5",
        lambda t, d: t * d**2 + 2 * d**2 + d,
        lambda t, d: t * d**2 + 2 * d**2 - 3 * d,
    ),
    "he": ("002-T6", lambda t, d: t * d + 3 * d**2 + d, lambda t, d: t * d + 3 * d**2 - 4 * d),
    "we": ("002-T6", lambda t, d: t * d + 2 * d**2 + d, lambda t, d: t * d + 2 * d**2 - 3 * d),
    "me": ("002-T6", lambda t, d: t * d, lambda t, d: t * d - d),
}


def _counts(phase: str, source: str, mult: _Form, add: _Form, *more: _Form) -> list[Published]:
    forms = (mult, add, _nothing, _nothing, *more)
    return [
        layer_count(source, quantity, phase, lambda n, d, _, form=form: form(n, d))  # type: ignore[misc]
        for quantity, form in zip(QUANTITIES, forms, strict=False)
    ]


#: tokens of a block of the direct convolution
BLOCK = 64
#: ``auto`` takes the FFT from this length on: there it counts fewer FLOPs than one block of
#: direct sums (with many rows a filter; with a single one from 60 on)
FFT_FROM = 50
#: distances of one product, and the most products of one call: with 65,536 tokens they meet
CHUNK = 16
MOST_PRODUCTS = 4096
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
    allowed: ClassVar[dict[str, Any]] = {"impl": ("auto", "direct", "fft")}
    #: a matrix, a vector or a scalar for each distance
    weights: ClassVar[str] = ""
    inputs: ClassVar[tuple[str, ...]] = ()  #: maps before the extraction

    @property
    def maps(self) -> tuple[str, ...]:
        """The layer's linear maps, d_model to d_model each."""
        return ()

    def chosen(self, n: costs.Number) -> costs.Number:
        """Return 1 for direct sums by blocks, 0 for the FFT; ``auto`` decides by length."""
        return (
            int(self.impl == "direct") if self.impl != "auto" else costs.not_dearer(n, FFT_FROM - 1)
        )

    # -- text --------------------------------------------------------------------------------
    def cost_notes(self, workload: Workload) -> tuple[str, ...]:
        """Return a note on the rule by which an FFT is counted, if one may run."""
        if self.weights == "matrix" or workload.phase == "decode":
            return ()
        direct = self.chosen(workload.seq_len)
        return () if costs.is_plain(direct) and direct else (FFT_RULE,)

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return w_1 … w_l (W_1 … W_l for SHE) by distance, nearest first."""
        n: costs.Number = sizes.seq_len
        d = sizes.d_model
        shape = {"matrix": (n, d, d), "vector": (n, d), "scalar": (n,)}[self.weights]
        terms = n * (d if self.weights == "matrix" else 1)
        return {"weight": Weight(shape, "uniform", square_root(terms))}

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[costs.Number, costs.Number]]:
        """Return the maps, each from d_model to d_model."""
        return dict.fromkeys(self.maps, (sizes.d_model, sizes.d_model))

    def layer(self, layer: Any, x: Any) -> Any:
        """Compute input map, extraction, adjustment and output map.

        An input shorter than the window uses the first of the weights.
        """
        n, window = x.shape[1], layer.weight.shape[0]
        if costs.is_plain(n, window) and n > window:
            raise self._too_long(n, window)
        whole = not costs.is_plain(n, window) or n == window
        weight = layer.weight if whole else layer.weight[:n]
        return _rest(layer, x, self.extracted(_mapped(layer, "in_proj", x), weight))

    def extracted(self, x: Any, weight: Any) -> Any:
        """Compute the extraction, (b, n, d) → (b, n, d)."""
        n = x.shape[1]
        direct = self.chosen(n)
        flags = (direct, 1 - direct if costs.is_plain(direct) else costs.not_dearer(FFT_FROM, n))
        # if symbols decide, a length short enough for direct sums fits one block
        block = costs.minimum(BLOCK, n) if costs.is_plain(direct) else n
        return causal_convolution(
            x, weight.view(n, -1), flags=flags, block=block, length=padded_length(n)
        )

    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return an empty cache with room for the window."""
        return cache.newest_first(1, sizes.d_model)

    def layer_step(self, layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """Compute one token: its row joins the cache, the direct sum runs over all rows there."""
        window = layer.weight.shape[0]
        if costs.is_plain(state.length, window) and state.length == window:
            raise self._too_long(window + 1, window)
        past = state.append(_mapped(layer, "in_proj", x))
        return _rest(layer, x, self._newest(past, layer.weight[: past.shape[1]])), state

    def _newest(self, past: Any, weight: Any) -> Any:
        """Return the direct sum for the newest token: past (b, t, d), newest first → (b, 1, d)."""
        b, t, d = past.shape
        if self.weights == "matrix":
            return past.view(b, t * d).mm(weight.view(t * d, d)).unsqueeze(1)
        if self.weights == "vector":
            return (past * weight).sum(1, keepdim=True)
        return weight.expand(b, 1, t).bmm(past)

    def _too_long(self, n: int, window: int) -> RequestError:
        return RequestError(
            f"{self.name} was built for a window of {window} tokens and got {n}: "
            f"build it with seq_len={n}"
        )

    # -- the definition ----------------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Define direct sums over t tokens for row t (002, Tables 3 to 6)."""
        w, d = workload, workload.d_model
        tokens = w.batch_size * rows(w)
        pairs = w.batch_size * (
            w.seq_len if w.phase == "decode" else costs.exact_div(w.seq_len * (w.seq_len + 1), 2)
        )
        results = tokens * d
        if "in_proj" in self.maps:
            writer.dots("input", results, results * d)
        writer.dots("extraction", results, pairs * (d * d if self.weights == "matrix" else d))
        if "adj_proj" in self.maps:
            writer.dots("adjustment", results, results * d)
            writer.stage("adjusted", costs.Cost(multiplications=results), tokens, d)
        if "out_proj" in self.maps:
            writer.dots("output", results, results * d)

    def published(self) -> tuple[Published, ...]:
        """Return the forms of document 002's Tables 3 to 6: a whole layer with its output map."""
        whole = not getattr(self, "extract_only", False) and getattr(self, "output", True)
        if not whole:
            return ()
        name = self.name
        return (*_counts("forward", *TRAINING[name]), *_counts("decode", *INFERENCE[name]))


def _mapped(layer: Any, name: str, x: Any) -> Any:
    """Apply the layer's linear map of this name, if it has one."""
    run = getattr(layer, name, None)
    return x if run is None else run(x)


def _rest(layer: Any, x: Any, extracted: Any) -> Any:
    """Return rows adjusted by the token's own row, through the output map."""
    if getattr(layer, "adj_proj", None) is None:
        return extracted
    adjusted = layer.adj_proj(x) * extracted
    del extracted
    return _mapped(layer, "out_proj", adjusted)


@dataclass(frozen=True, kw_only=True)
class Adjusted(Extractor):
    """An Extractor whose extraction is multiplied by x W^adj and mapped by W^out.

    ``output=false`` leaves W^out out; ``extract_only`` is the extraction alone.
    """

    output: bool = True
    extract_only: bool = False

    @property
    def maps(self) -> tuple[str, ...]:
        """The layer's linear maps, in the order they run."""
        if self.extract_only:
            return self.inputs
        return (*self.inputs, "adj_proj", *(["out_proj"] if self.output else []))


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
    allowed: ClassVar[dict[str, Any]] = {"impl": ("auto", "products", "direct")}
    weights: ClassVar[str] = "matrix"

    def chosen(self, n: costs.Number) -> costs.Number:
        """Return the number of distances that one product takes."""
        if self.impl == "direct":
            return 1
        return costs.maximum(costs.minimum(CHUNK, n), costs.ceil_div(n, MOST_PRODUCTS))

    def extracted(self, x: Any, weight: Any) -> Any:
        """Compute all products."""
        return matrix_convolution(x, weight, chunk=self.chosen(x.shape[1]))


@dataclass(frozen=True, kw_only=True)
class HE(Adjusted):
    """Higher-performance Extractor: a vector for each distance, after W^in (002, Eq 27, 28)."""

    name: ClassVar[str] = "he"
    title: ClassVar[str] = "Higher-performance Extractor (HE)"
    time_order: ClassVar[str] = "N log N"
    weights: ClassVar[str] = "vector"
    inputs: ClassVar[tuple[str, ...]] = ("in_proj",)


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
