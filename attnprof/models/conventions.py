"""FLOPs of a training step as frameworks and papers count them, term by term.

MFU divides these FLOPs by what a device could do in the same time. Every framework has a function
of its own, and they differ in which parameters are multiplied, whether the causal mask halves
attention, and what windows, experts and recurrent layers cost. :func:`terms` gives a convention's
count of a model as named terms, :func:`dropped` says where these differ from what is executed.

Every count is a whole number for each token plus whole numbers for each pair of a query and a key
that its mask leaves, or that the convention pretends it leaves. A :class:`Mask` counts such pairs;
:data:`Count` is a sum of them, exact at every length, as sympy expression and as plain Python.

Sources: ``palm`` 6·N + 12·L·H·Q·T with all parameters N (arXiv 2204.02311, appendix B; its 46.2 %
come out with the 540.35e9 of its table 1); ``megatron`` num_floating_point_operations of
Megatron-LM (megatron/training/training.py); ``torchtitan`` get_nparams_and_flops
(torchtitan/models/utils.py, the formula without windows); ``verl`` verl/utils/flops_counter.py;
``6n`` 6·N·D with all active parameters (arXiv 2005.14165, table D.1).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING, Any

from attnprof.units import plural

if TYPE_CHECKING:
    from attnprof.models.mfu_sizes import ImageShape


@dataclass(frozen=True, order=True)
class Mask:
    """The keys that each of N queries sees.

    ``token``: one, as if each token were a pair; ``once``: one in all; ``full``: all N; ``causal``:
    itself and all before; ``window``: the last ``size`` of these; ``capped``: always Min(N,
    ``size``); ``chunk``: those before it in its chunk of ``size``; ``around``: ``size`` on either
    side; ``rows``: rows for whole blocks of ``size`` tokens up to it, ``most`` if that is not 0.
    """

    kind: str
    size: int = 0
    most: int = 0

    def pairs(self, n: int) -> int:
        """Return the number of pairs of ``n`` tokens."""
        return int(n * self._keys_seen(Fraction(n), min, floor)) if n else 0

    def mean(self) -> Any:
        """Return the pairs divided by the tokens as a sympy expression in N."""
        import sympy

        from attnprof.algebra.expressions import symbol

        return self._keys_seen(symbol("N"), sympy.Min, sympy.floor)

    def _keys_seen(self, n: Any, minimum: Callable[..., Any], floor: Callable[..., Any]) -> Any:
        """Return the keys that each of n queries sees on average, for numbers and symbols."""
        kind, size = self.kind, self.size
        if kind in ("token", "once", "full", "causal"):
            return {"token": n / n, "once": 1 / n, "full": n, "causal": (n + 1) / 2}[kind]
        if kind == "capped":
            return minimum(n, size)
        if kind == "chunk":
            whole = floor(n / size)
            rest = n - size * whole
            return (whole * size * (size + 1) + rest * (rest + 1)) / (2 * n)
        if kind == "around":
            near = minimum(n - 1, size)
            return 2 * near + 1 - near * (near + 1) / n
        if kind == "rows":  # up to token ``last`` their number grows
            last = minimum(n, size * self.most - 1) if self.most else n
            rows = floor(last / size)
            growing = rows * (last + 1) - size * rows * (rows + 1) / 2
            return (growing + self.most * (n - last)) / n
        keys = minimum(n, size)
        return keys - keys * (keys - 1) / (2 * n)

    def python(self) -> str:
        """Return the pairs as a Python expression in ``n`` that needs no import."""
        size, kind = self.size, self.kind
        if kind in ("token", "once", "full", "causal"):
            return {"token": "n", "once": "1", "full": "n * n", "causal": "n * (n + 1) // 2"}[kind]
        if kind == "capped":
            return f"n * min(n, {size})"
        if kind == "chunk":
            whole = f"(n // {size}) * {size * (size + 1) // 2}"
            return f"({whole} + (n % {size}) * (n % {size} + 1) // 2)"
        if kind == "around":
            near = f"min(n - 1, {size})"
            return f"(n * (2 * {near} + 1) - {near} * ({near} + 1))"
        if kind == "rows":
            last = f"min(n, {size * self.most - 1})" if self.most else "n"
            rows = f"({last} // {size})"
            growing = f"{rows} * ({last} + 1) - {size} * {rows} * ({rows} + 1) // 2"
            return f"({growing} + {self.most} * (n - {last}))"
        keys = f"min(n, {size})"
        return f"(n * {keys} - {keys} * ({keys} - 1) // 2)"


TOKEN, ONCE, FULL, CAUSAL = Mask("token"), Mask("once"), Mask("full"), Mask("causal")
#: FLOPs by the mask whose pairs they are spent on; FLOPs of each token stand at :data:`TOKEN`.
Count = Mapping[Mask, int]


def summed(counts: Iterable[Count]) -> dict[Mask, int]:
    """Return the sum of counts, without zeros."""
    total = Counter[Mask]()
    for count in counts:
        total.update(count)
    return {mask: flops for mask, flops in sorted(total.items()) if flops}


def times(count: Count, factor: Fraction | int) -> dict[Mask, int]:
    """Return a count times a factor that leaves whole numbers."""
    scaled = {mask: flops * Fraction(factor) for mask, flops in count.items()}
    assert all(value.denominator == 1 for value in scaled.values()), (count, factor)
    return {mask: value.numerator for mask, value in scaled.items() if value}


def sequence_flops(count: Count, n: int) -> int:
    """Return the FLOPs of a sequence of ``n`` tokens."""
    return sum(flops * mask.pairs(n) for mask, flops in count.items())


def per_token(flops: int, tokens: int) -> int:
    """Return FLOPs a token, rounded to the nearest whole number (half up)."""
    return (2 * flops + tokens) // (2 * tokens)


def expression(count: Count) -> Any:
    """Return the FLOPs a token as a sympy expression in N."""
    import sympy

    each = count.get(TOKEN, 0)
    terms = [flops * mask.mean() for mask, flops in count.items() if mask != TOKEN]
    plain = [term for term in terms if not term.has(sympy.Min, sympy.floor)]
    others = [term for term in terms if term.has(sympy.Min, sympy.floor)]
    return sympy.Add(sympy.expand(sympy.Add(each, *plain)), *others)


#: Roles of weights: matrices that every token is multiplied with, and others.
MATRICES = (
    "attention", "mlp", "expert", "shared expert", "shared gate", "router", "indexer", "head",
)  # fmt: skip
#: Weights in no product for every token: tables, scales, summands, heads of one row a sequence.
OTHERS = ("embedding", "norm", "latent norm", "bias", "vector", "pooled")
ROLES = (*MATRICES, "convolution", *OTHERS)
#: Names of terms in answers, by role.
NAMES = {
    "attention": "attention projections", "mlp": "dense MLPs", "expert": "routed experts",
    "shared expert": "shared experts", "shared gate": "gates of shared experts",
    "router": "routers", "indexer": "indexer projections", "head": "output head",
    "convolution": "short convolutions", "embedding": "embedding tables", "norm": "norms",
    "latent norm": "norms of latents", "bias": "biases", "vector": "other vectors",
    "pooled": "heads of one row a sequence",
    "scores": "attention over pairs", "index scores": "indexer over pairs",
    "recurrent": "recurrent state", "mtp": "multi-token prediction",
}  # fmt: skip


@dataclass(frozen=True)
class RoleWeights:
    """Parameters of one role in the whole model, and how many of them one token meets."""

    entries: int
    active: int


@dataclass(frozen=True)
class AttentionShape:
    """Softmax attention of heads over the pairs of a mask, in ``layers`` alike.

    Keys may be wider than values, as in latent attention. Queries see ``rows`` for several tokens,
    too. ``index_heads`` of an indexer score the pairs of ``index_mask`` before some are chosen.
    """

    layers: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    mask: Mask = CAUSAL
    rows: Mask | None = None
    index_heads: int = 0
    index_dim: int = 0
    index_mask: Mask = CAUSAL

    @property
    def masks(self) -> list[Mask]:
        """The masks whose pairs attention scores and sums."""
        return [mask for mask in (self.mask, self.rows) if mask is not None]

    @property
    def widths(self) -> int:
        """Entries of keys and values that a pair of tokens meets, in all layers and heads."""
        return self.layers * self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True)
class MixerShape:
    """Recurrent mixers of ``layers`` alike; the state is ``heads`` matrices, key_dim by value_dim.

    ``rule`` is ``delta`` (the state's value of a key is corrected), ``decay`` (the state fades),
    ``dplr`` (RWKV-7) or ``scan`` (entry by entry: no products). ``groups`` share keys and queries.
    ``chunk`` tokens are computed at once.
    """

    layers: int
    rule: str
    heads: int
    key_dim: int
    value_dim: int
    chunk: int
    groups: int = 0

    @property
    def state(self) -> int:
        """Entries of the state of all layers."""
        return self.layers * self.heads * self.key_dim * self.value_dim

    def products(self) -> int:
        """Return the multiply-adds of matrix products a token, in chunked form."""
        c, k, v = self.chunk, self.key_dim, self.value_dim
        each = {
            "delta": c * (3 * k + 2 * v) + 3 * k * v,
            "decay": c * v + 2 * k * v,
            "dplr": c * (5 * k + 4 * v) + 4 * k * v,
            "scan": 0,
        }[self.rule]
        shared = (self.groups or self.heads) * c * k if self.rule == "decay" else 0
        return self.layers * (self.heads * each + shared)


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The numbers that conventions need of a model; ``mtp_layers`` predict further tokens."""

    name: str
    hidden: int
    weights: Mapping[str, RoleWeights]
    attention: Sequence[AttentionShape]
    mixers: Sequence[MixerShape] = ()
    layers: int = 0
    tied: bool = False
    mtp_layers: int = 0
    mtp_matrices: int = 0
    usual_length: int = 1024
    images: "ImageShape | None" = None
    symbols: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def entries(self, *roles: str) -> int:
        """Return the parameters of roles, tied tables once."""
        return sum(x.entries for role, x in self.weights.items() if role in roles)

    def active(self, *roles: str) -> int:
        """Return the parameters of roles that one token meets."""
        return sum(x.active for role, x in self.weights.items() if role in roles)


Terms = dict[str, dict[Mask, int]]


def _weights(sizes: ModelSizes, roles: Sequence[str], factor: int = 6, mask: Mask = TOKEN) -> Terms:
    return {role: {mask: factor * sizes.active(role)} for role in roles if sizes.active(role)}


def _scores(sizes: ModelSizes, factor: int, mask: Callable[[Mask], Mask]) -> Terms:
    counts = [{mask(x.mask): factor * x.widths} for x in sizes.attention]
    return {"scores": summed(counts)} if counts else {}


def _palm(sizes: ModelSizes) -> Terms:
    return _weights(sizes, ROLES) | _scores(sizes, 6, lambda _: FULL)


def _torchtitan(sizes: ModelSizes) -> Terms:
    by_term = _weights(sizes, [role for role in ROLES if role != "embedding"])
    state = sum(18 * x.state for x in sizes.mixers if x.rule in ("delta", "dplr"))
    return by_term | _scores(sizes, 6, lambda _: FULL) | _each("recurrent", state)


def _megatron(sizes: ModelSizes) -> Terms:
    roles = ("attention", "mlp", "expert", "shared expert", "latent norm", "head")
    by_term = _weights(sizes, roles) | _scores(sizes, 3, lambda _: FULL)
    deltas = [x for x in sizes.mixers if x.rule in ("delta", "dplr")]
    delta = sum(24 * x.layers * x.heads * x.value_dim**2 for x in deltas)
    scan = sum(21 * x.state for x in sizes.mixers if x not in deltas)
    if delta:  # its Mamba layers have no convolution
        by_term |= _weights(sizes, ["convolution"])
    mtp = sizes.mtp_matrices + 3 * sizes.hidden + 2 * sizes.hidden**2 + sizes.active("head")
    return by_term | _each("recurrent", delta + scan) | _each("mtp", 6 * sizes.mtp_layers * mtp)


def _verl(sizes: ModelSizes) -> Terms:
    roles = ("attention", "mlp", "expert", "shared expert", "shared gate", "router", "convolution")
    by_term = _weights(sizes, (*roles, "head")) | _each("embedding", 6 * sizes.active("head"))
    state = sum(15 * x.state for x in sizes.mixers)
    capped = lambda mask: Mask("capped", mask.size) if mask.kind == "window" else FULL  # noqa: E731
    return by_term | _scores(sizes, 3, capped) | _each("recurrent", state)


def _each(name: str, flops: int) -> Terms:
    return {name: {TOKEN: flops}} if flops else {}


CONVENTIONS: Mapping[str, Callable[[ModelSizes], Terms]] = {
    "palm": _palm, "megatron": _megatron, "torchtitan": _torchtitan, "verl": _verl,
    "6n": lambda sizes: _weights(sizes, ROLES),
}  # fmt: skip
EXECUTED = "executed"
NAMES_OF_CONVENTIONS = (*CONVENTIONS, EXECUTED)
PHASES = ("forward", "train")


def executed(sizes: ModelSizes, phase: str = "train") -> Terms:
    """Return the FLOPs of all products of matrices, at 2 a multiply-add, over exact pairs.

    In training every product has two more, for the gradients of both factors. Fused attention
    keeps no scores, so its backward pass has five products where the forward has two: three as wide
    as a key (scores again, gradients of queries and keys), two as wide as a value. That is 3.5
    times the forward pass in all where both are equally wide.
    """
    train = phase == "train"
    by_term = _weights(sizes, [*MATRICES, "convolution"], 6 if train else 2)
    by_term |= _weights(sizes, ["pooled"], 6 if train else 2, ONCE)
    pairs, index = [], []
    for x in sizes.attention:
        widths = 4 * x.key_dim + 3 * x.value_dim if train else x.key_dim + x.value_dim
        pairs += [{mask: 2 * x.layers * x.heads * widths} for mask in x.masks]
        index.append({x.index_mask: (6 if train else 2) * x.layers * x.index_heads * x.index_dim})
    scores = {"scores": summed(pairs), "index scores": summed(index)}
    by_term |= {name: counted for name, counted in scores.items() if counted}
    state = sum(x.products() for x in sizes.mixers)
    return by_term | _each("recurrent", (6 if train else 2) * state)


def terms(sizes: ModelSizes, convention: str, phase: str = "train") -> Terms:
    """Return a convention's FLOPs of a phase by term; the forward pass is a third of training.

    ``executed`` is the exception (:func:`executed`).
    """
    if convention == EXECUTED:
        return executed(sizes, phase)
    by_term = CONVENTIONS[convention](sizes)
    share = Fraction(1) if phase == "train" else Fraction(1, 3)
    return {name: times(count, share) for name, count in by_term.items()}


def count(sizes: ModelSizes, convention: str, phase: str = "train") -> dict[Mask, int]:
    """Return a convention's FLOPs of a phase, all terms together."""
    return summed(terms(sizes, convention, phase).values())


def dropped(sizes: ModelSizes, convention: str, phase: str = "train") -> list[str]:
    """Return sentences on the terms in which a convention differs from what is executed."""
    theirs, ours = terms(sizes, convention, phase), executed(sizes, phase)
    both = {name: (theirs.get(name, {}), ours.get(name, {})) for name in ours | theirs}
    notes = [_difference(x, *both[x], sizes) for x in both if both[x][0] != both[x][1]]
    if sizes.mtp_layers and "mtp" not in theirs:
        layers = plural(sizes.mtp_layers, "layer")
        notes.append(f"multi-token prediction left out: {layers} named in the configuration")
    return notes


def _difference(name: str, theirs: Count, ours: Count, sizes: ModelSizes) -> str:
    label = NAMES[name]
    if name == "scores":
        return _pair_difference(theirs, ours, sizes) if theirs else f"{label} left out"
    if not theirs:
        return f"{label} left out" + (f": - {ours[TOKEN]:,}" if TOKEN in ours else "")
    if not ours:
        verb = "counted" if name in ("mtp", "recurrent") else "counted as if multiplied"
        return f"{label} {verb}: + {theirs[TOKEN]:,}"
    apart = theirs[TOKEN] - ours.get(TOKEN, 0)
    how = "counted for every token" if ONCE in ours else "by a formula of its own"
    return f"{label} {how}: {'+' if apart > 0 else '-'} {abs(apart):,}"


def _pair_difference(theirs: Count, ours: Count, sizes: ModelSizes) -> str:
    """Return how a convention's keys a query and its backward pass differ from the executed."""
    masks = {x.mask.kind for x in sizes.attention}
    total = sum(x.widths for x in sizes.attention)
    factor = Fraction(sum(theirs.values()), total)
    phrases = []
    if "causal" in masks:
        half, full = "causal halved to N/2 keys", "causal counted full: N keys"
        phrases.append(f"{half if factor in (1, 3) else full}, not (N + 1)/2")
    if masks & {"window", "chunk", "around"}:
        capped = any(mask.kind == "capped" for mask in theirs)
        phrases.append(f"windows counted {'as Min(N, w) keys, halved' if capped else 'dense'}")
    if "full" in masks and factor in (1, 3):
        phrases.append("halved, though no key is masked")
    if any(x.rows for x in sizes.attention):
        phrases.append("rows that stand for several tokens left out")
    if sum(ours.values()) > 2 * sum(x.widths * len(x.masks) for x in sizes.attention):
        phrases.append("backward 2x, without the fused kernel's recomputation")
    return f"{NAMES['scores']}: {'; '.join(phrases)}" if phrases else f"{NAMES['scores']} differ"
