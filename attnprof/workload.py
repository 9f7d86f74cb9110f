"""A workload: sizes, phase, mask, number format of a call; and formulas printed of workloads."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from attnprof.algebra.polynomials import divisors
from attnprof.arguments import choice, flag, size
from attnprof.costs import Number, is_plain
from attnprof.errors import RequestError

PHASES = ("forward", "backward", "train", "decode")
SCOPES = ("core", "layer")
#: Bytes of an element by number format; with ``entry`` memory is counted in elements.
ENTRY = "entry"
ITEM_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, ENTRY: 1}
DTYPES = tuple(name for name in ITEM_SIZES if name != ENTRY)
#: Sizes by the letters that formulas have for them.
SYMBOLS = {"B": "batch_size", "N": "seq_len", "h": "num_heads", "d": "head_dim"}
_OPTIONAL = ("num_kv_heads", "value_head_dim", "kv_seq_len", "width")
SIZES = (*SYMBOLS.values(), *_OPTIONAL)


@dataclass(frozen=True)
class Workload:
    """The sizes of one call; each is an int, a numpy array or a positive sympy symbol.

    ``seq_len`` are the query tokens (for ``decode``: the number t of the new token, counted
    from 1), ``kv_seq_len`` the key tokens (default: the same). ``width`` is the model's, where it
    is not heads times head width, as plots and released models have it. ``phase`` is ``forward``,
    ``backward``, ``train`` (both) or ``decode``; ``prefill`` is an alias for a causal forward.
    Raises :class:`RequestError` for impossible values.

    >>> workload = Workload(1024, num_heads=8, head_dim=64, phase="prefill")
    >>> workload.d_model, workload.phase, workload.causal, workload.with_(seq_len=1).seq_len
    (512, 'forward', True, 1)
    """

    seq_len: Number
    num_heads: Number
    head_dim: Number
    batch_size: Number = 1
    num_kv_heads: Number | None = None
    value_head_dim: Number | None = None
    kv_seq_len: Number | None = None
    causal: bool = False
    phase: str = "forward"
    dtype: str = "float32"
    width: Number | None = None

    def __post_init__(self) -> None:
        if isinstance(self.phase, str) and self.phase == "prefill":
            object.__setattr__(self, "phase", "forward")
            object.__setattr__(self, "causal", True)
        choice("phase", self.phase, [*PHASES, "prefill"])
        if not (isinstance(self.dtype, str) and self.dtype == ENTRY):
            choice("dtype", self.dtype, DTYPES)
        object.__setattr__(self, "causal", flag("causal", self.causal))
        for name in SIZES:
            if getattr(self, name) is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, size(name, getattr(self, name)))
        if is_plain(self.num_heads, self.kv_heads) and self.num_heads % self.kv_heads:
            raise RequestError(
                f"num_kv_heads={self.kv_heads} does not divide num_heads={self.num_heads}: "
                "each key head serves the same number of query heads; possible: "
                f"{', '.join(map(str, divisors(self.num_heads)))}"
            )
        if self.kv_seq_len is not None and self.phase == "decode":
            raise RequestError(
                "a decoding step sees all tokens so far: leave --kv-seq (kv_seq_len) or --phase "
                "decode out"
            )
        if self.kv_seq_len is not None and self.causal:
            raise RequestError(
                "causal needs as many keys as queries: leave --kv-seq (kv_seq_len) or --causal out"
            )

    def by_symbol(self) -> dict[str, Any]:
        """Return batch, tokens, heads and head width by their letters in formulas: B, N, h, d."""
        return {letter: getattr(self, name) for letter, name in SYMBOLS.items()}

    @property
    def d_model(self) -> Number:
        """Model width: heads times head width unless given."""
        return self.num_heads * self.head_dim if self.width is None else self.width

    @property
    def kv_heads(self) -> Number:
        """Key and value heads; as many as query heads unless grouped."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def value_width(self) -> Number:
        """Width of a value head; the head width unless given."""
        return self.head_dim if self.value_head_dim is None else self.value_head_dim

    @property
    def keys(self) -> Number:
        """Key tokens; as many as query tokens unless given."""
        return self.seq_len if self.kv_seq_len is None else self.kv_seq_len

    @property
    def item_size(self) -> int:
        """Bytes of one element."""
        return ITEM_SIZES[self.dtype]

    def with_(self, **changes: Any) -> "Workload":
        """Return the workload with some fields changed."""
        try:
            return replace(self, **changes)
        except TypeError as error:
            names = ", ".join(item.name for item in fields(self))
            raise RequestError(f"a workload has {names}; not {', '.join(changes)}") from error


def pairs(workload: Workload) -> Number:
    """Return query-key pairs of the definition: N(N+1)/2 if causal, t for one decoded token."""
    n = workload.seq_len
    if workload.phase == "decode":
        return n
    if workload.causal:
        total = n * (n + 1)
        return total // 2 if not hasattr(total, "free_symbols") else total / 2
    return n * workload.keys


def rows(workload: Workload) -> Number:
    """Return query rows of one call: one in a decoding step."""
    return 1 if workload.phase == "decode" else workload.seq_len


@dataclass(frozen=True)
class Published:
    """A closed form as a document prints it, untouched.

    ``formula`` maps a workload of one sequence to the printed value; two published formulas may
    be compared only if document, scope, phase, causal, quantity and convention all agree.
    ``heads`` is ``one`` where the document prints the form for a single head.
    """

    source: str
    quantity: str
    scope: str
    phase: str
    convention: str
    formula: Callable[[Workload], Number]
    causal: bool = False
    heads: str = "any"

    @property
    def document(self) -> str:
        """Number of the document, ``004`` of ``004-EQ5``."""
        return self.source.split("-", 1)[0]

    @property
    def terms(self) -> tuple[Any, ...]:
        """Fields in which two formulas must agree to be compared."""
        return (
            self.document, self.scope, self.phase, self.causal, self.quantity,
            self.convention, self.heads,
        )  # fmt: skip
