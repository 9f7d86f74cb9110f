"""Records of commands that count or predict, one class a command; fields are JSON keys, columns.

Measured results have their records in :mod:`attnprof.record.measured`.
"""

from dataclasses import dataclass
from typing import Any

from attnprof.record.base import Record, column


@dataclass(frozen=True, kw_only=True)
class MechanismRecord(Record, commands=("list",)):
    """``list``: a mechanism, its orders of growth, its parameters and its source."""

    mechanism: str = column("mechanism")
    title: str = column("title")
    family: str = column("family")
    time_order: str = column("time")
    memory_order: str = column("memory")
    params: dict[str, Any] = column("params", default=dict)
    causal: bool = column("causal")
    decode: bool = column("decode")
    document: str = column("document")
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class GrowthRecord(Record, commands=("list --verify",)):
    """``list --verify``: how one quantity grows with the length, claimed and counted.

    Exponents, also the claim's, are fitted over the longer half of ``seq_lens``.
    ``declared_order`` is what the specification says of these parameters, ``expected`` whether the
    growth stays within it, ``equals_formula`` whether torch's count is the closed form's
    everywhere.
    """

    mechanism: str = column("mechanism")
    variant: str = column("variant")
    params: dict[str, Any] = column("params", default=dict)
    scope: str = column("scope")
    phase: str = column("phase")
    causal: bool = column("causal")
    num_heads: int = column("heads", fmt="count")
    head_dim: int = column("head dim", fmt="count")
    dtype: str = column("dtype")
    quantity: str = column("quantity")
    kind: str = column("kind")
    source: str = column("source")
    claimed_order: str = column("claimed")
    declared_order: str = column("declared")
    claimed_exponent: float | None = column("claimed exponent", fmt="number")
    found_exponent: float | None = column("found exponent", fmt="number")
    verdict: str | None = column("verdict")
    expected: bool | None = column("expected")
    equals_formula: bool | None = column("equals the closed form")
    reason: str | None = column("because")
    seq_lens: list[int] = column("lengths", default=list)
    values: list[int] = column("values", default=list)
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class ReleasedRecord(Record, commands=("list --models",)):
    """``list --models``: a released model that is shipped as a configuration.

    ``parameters`` are those of the model that transformers builds; ``published`` is its makers'
    number, null if unknown, and ``beyond`` what they count besides.
    """

    model: str = column("model")
    model_type: str = column("type")
    parameters: int = column("parameters", fmt="count")
    published: int | None = column("published", fmt="count")
    beyond: str = column("beyond")
    hub: str = column("on the Hub")


@dataclass(frozen=True, kw_only=True)
class ComparedRecord(Record, commands=("model --compare",)):
    """``model --compare``: one quantity of one of several models, at the same sizes.

    ``phase`` is empty for a quantity that no phase changes. ``flops_per_token`` is a phase's FLOPs
    divided by the tokens that it computes. ``cache_bytes_per_token`` is the growth of the cache by
    one more token at the asked length, null if there is no formula. ``bound`` and ``view`` are as
    in ``model``.
    """

    model: str = column("model")
    phase: str = column("phase")
    quantity: str = column("quantity")
    expression: str | None = column("expression")
    value: int | float | None = column("value", fmt="count")
    bound: str = column("bound", default="exact")
    view: str = column("view", default="torch")


@dataclass(frozen=True, kw_only=True)
class AtWorkload(Record):
    """Base of records on one mechanism at one workload."""

    mechanism: str = column("mechanism")
    params: dict[str, Any] = column("params", default=dict)
    scope: str = column("scope")
    phase: str = column("phase")
    causal: bool = column("causal")
    batch_size: int = column("batch", fmt="count")
    seq_len: int = column("seq", fmt="count")
    d_model: int = column("d_model", fmt="count")
    num_heads: int = column("heads", fmt="count")
    head_dim: int = column("head dim", fmt="count")
    dtype: str = column("dtype")


@dataclass(frozen=True, kw_only=True)
class CostRecord(AtWorkload, commands=("cost",)):
    """``cost``: one quantity of one stage, as expression and value."""

    part: str | None = column("part")
    stage: str = column("stage")
    quantity: str = column("quantity")
    kind: str = column("kind")
    convention: str = column("convention")
    source: str | None = column("source")
    expression: str | None = column("expression")
    latex: str | None = column("LaTeX")
    value: int | float | None = column("value", fmt="count")
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class RanksRecord(AtWorkload, commands=("cost --ranks",)):
    """``cost --ranks``: the bytes that a rank sends in a layer, where ranks share the tokens.

    ``method`` is ring, all-to-all, state passing or state gathering, ``steps`` how many sends
    follow one another; a train phase has forward and backward in one number. ``overlap_tokens``
    are the fewest tokens a rank at which its products take as long as its sending, null where no
    length is enough or no bandwidth was given.
    """

    method: str = column("method")
    ranks: int = column("ranks", fmt="count")
    tokens_per_rank: int = column("tokens a rank", fmt="count")
    bytes_sent: int | None = column("sent", "B", "bytes")
    expression: str | None = column("expression")
    steps: int | None = column("steps", fmt="count")
    send_time_s: float | None = column("time", "s", "time")
    overlap_tokens: int | None = column("tokens for overlap", fmt="count")
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class CompareRecord(AtWorkload, commands=("compare",)):
    """``compare``: the totals of one mechanism for one workload.

    ``step_bytes`` are the bytes that a decoding step has to move, ``step_intensity`` FLOPs of
    products over these bytes; both are null in other phases.
    """

    flops: int | None = column("FLOPs", fmt="count")
    matmul_flops: int | None = column("matmul FLOPs", fmt="count")
    operations: int | None = column("operations", fmt="count")
    bytes_moved: int | None = column("bytes moved", "B", "bytes")
    peak_bytes: int | None = column("peak memory", "B", "bytes")
    parameters: int | None = column("parameters", fmt="count")
    state_bytes: int | None = column("decoding state", "B", "bytes")
    step_bytes: int | None = column("bytes a step", "B", "bytes")
    step_intensity: float | None = column("FLOPs a byte", "FLOP/B", "number")
    arithmetic_intensity: float | None = column("intensity", "FLOP/B", "number")
    wins: str = column("wins", default="")
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class PredictRecord(AtWorkload, commands=("predict",)):
    """``predict``: time and peak memory of one point, from a calibration's operations.

    The interval has 95 %. On a device that was not calibrated ``time_s`` is a lower bound that may
    be far off, and ``ci_high_s`` is null. ``bound`` is what limits most of the time: compute,
    memory or the overhead of calls. ``operations`` are the slowest ones, each with its sizes (a
    product's batch, m, n, k), calls and seconds.
    """

    device: str = column("device")
    time_s: float | None = column("time", "s", "time")
    ci_low_s: float | None = column("low", "s", "time")
    ci_high_s: float | None = column("high", "s", "time")
    peak_bytes_predicted: int | None = column("peak memory", "B", "bytes")
    bound: str | None = column("bound")
    operations: list[dict[str, Any]] = column("operations", default=list)
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class RecommendRecord(AtWorkload, commands=("recommend",)):
    """``recommend``: one mechanism for a request, by its predicted time.

    ``rank`` orders mechanisms that fit the memory, the ``exact`` ones first; where it is null,
    ``skipped`` says why. ``gives_up`` names abilities of softmax attention that it lacks.
    """

    device: str = column("device")
    rank: int | None = column("rank", fmt="count")
    time_s: float | None = column("time", "s", "time")
    ci_low_s: float | None = column("low", "s", "time")
    ci_high_s: float | None = column("high", "s", "time")
    peak_bytes: int | None = column("peak memory", "B", "bytes")
    exact: bool = column("exact")
    gives_up: str = column("gives up", default="")
    fits: bool | None = column("fits")
    skipped: str | None = column("skipped")


@dataclass(frozen=True, kw_only=True)
class HeadsRecord(Record, commands=("heads",)):
    """``heads``: one quantity at one head count, at fixed model width."""

    mechanism: str = column("mechanism")
    num_heads: int = column("heads", fmt="count")
    head_dim: int = column("head dim", fmt="count")
    quantity: str = column("quantity")
    kind: str = column("kind")
    source: str | None = column("source")
    value: int | float | None = column("value", fmt="count")


@dataclass(frozen=True, kw_only=True)
class HeatmapRecord(Record, commands=("heatmap",)):
    """``heatmap``: one cell of the ratio of two costs."""

    seq_len: int = column("seq", fmt="count")
    d_model: int = column("d_model", fmt="count")
    num_heads: int = column("heads", fmt="count")
    kind: str = column("kind")
    quantity: str = column("quantity")
    phase: str = column("phase")
    value_a: int | float | None = column("A", fmt="count")
    value_b: int | float | None = column("B", fmt="count")
    ratio: float | None = column("ratio", fmt="ratio")


@dataclass(frozen=True, kw_only=True)
class DeriveRecord(Record, commands=("derive",)):
    """``derive``: one quantity of one phase as an expression in the request's symbols.

    ``expression`` is null if only the number at the asked shape could be counted (``method`` is
    then ``counted``), or if a run contradicted it: ``withheld`` says which. ``domain`` lists the
    conditions under which it holds, ``verified_at`` the shapes at which a run gave the same number.
    Operations that ``uncounted`` names are left out of the counts: these are then lower bounds, and
    ``bound`` says ``at least``; ``even routing`` marks counts that depend on how tokens are shared
    among experts. ``value`` is exact.
    """

    name: str = column("of")
    phase: str = column("phase")
    quantity: str = column("quantity")
    expression: str | None = column("expression")
    latex: str | None = column("LaTeX")
    bound: str = column("bound", default="exact")
    domain: list[str] = column("domain", default=list)
    method: str = column("method")
    verified_at: list[dict[str, int]] = column("verified at", default=list)
    uncounted: list[str] = column("uncounted", default=list)
    value: int | float | None = column("value", fmt="count")
    withheld: str = column("withheld", default="")


@dataclass(frozen=True, kw_only=True)
class ModelRecord(Record, commands=("model",)):
    """``model``: one quantity of a part of a model, of all layers of a kind together.

    ``part`` is ``total`` for the whole model; ``layer_kind`` is empty outside layers, and ``count``
    is the number of layers of the kind. ``expression`` is in B (batch), N (tokens) and L (layers,
    where they repeat), null if there is no formula; ``value`` is that of a run at the asked sizes.
    ``bound`` says ``at least`` if both leave operations out, ``even routing`` if they depend on how
    tokens are shared among experts, else ``exact``. ``view``: as ``engine`` or ``torch`` runs it.
    """

    part: str = column("part")
    layer_kind: str = column("layers", default="")
    count: int = column("count", fmt="count")
    phase: str = column("phase")
    quantity: str = column("quantity")
    expression: str | None = column("expression")
    value: int | float | None = column("value", fmt="count")
    bound: str = column("bound", default="exact")
    view: str = column("view", default="torch")


@dataclass(frozen=True, kw_only=True)
class FitRecord(Record, commands=("fit",)):
    """``fit``: bytes of a part on one rank, its formula, and the basis of both.

    ``part`` is weights, cache, activations, gradients, optimizer, reserve or total; ``formula`` is
    in B sequences, N tokens of each, T tokens of a prompt at once and P parameters.
    """

    part: str = column("part")
    bytes: int = column("bytes", unit="B", fmt="bytes")
    formula: str = column("formula", default="")
    basis: str = column("basis", default="")


@dataclass(frozen=True, kw_only=True)
class MfuRecord(Record, commands=("model --mfu",)):
    """``model --mfu``: FLOPs a token of a phase by a convention, at the asked lengths.

    ``expression`` is in N, for one sequence of N tokens; ``flops`` are those of all ``tokens``,
    exact where ``flops_per_token`` is rounded. ``dropped`` says which terms the convention leaves
    out, adds or counts otherwise than what is executed.
    """

    convention: str = column("convention")
    phase: str = column("phase")
    flops_per_token: int = column("FLOPs a token", fmt="count")
    expression: str = column("formula")
    dropped: str = column("dropped", default="")
    tokens: int = column("tokens", fmt="count")
    flops: int = column("FLOPs", fmt="count")


@dataclass(frozen=True, kw_only=True)
class FormulaTermRecord(Record, commands=("verify-formula --model",)):
    """``verify-formula --model``: a term of a formula for a model's FLOPs a token.

    ``theirs`` is the formula's share as text in N, ``ours`` what is executed, ``difference``
    theirs minus ours; ``what`` says what the difference is. Values are at ``seq_len``.
    """

    term: str = column("term")
    theirs: str = column("theirs", default="")
    ours: str = column("ours", default="")
    difference: str = column("difference", default="")
    what: str = column("what it is", default="")
    seq_len: int = column("seq", fmt="count")
    theirs_value: int | float | None = column("theirs at N", fmt="count")
    ours_value: int | float | None = column("ours at N", fmt="count")


@dataclass(frozen=True, kw_only=True)
class VerificationRecord(Record, commands=("verify-formula",)):
    """``verify-formula``: a printed formula beside the one of this project.

    ``where`` says what its names stand for, ``up_to`` how far the two were compared: ``exact``,
    ``leading`` terms or ``order`` of growth. ``difference`` is ours minus printed, ``values`` has
    both at a few sizes. Our formula holds on ``domain`` and equalled the count of a run at
    ``verified_at``.
    """

    place: str = column("place", default="")
    of: str = column("of")
    scope: str | None = column("scope")
    phase: str = column("phase")
    causal: bool = column("causal")
    quantity: str = column("quantity")
    kind: str = column("kind")
    convention: str = column("convention")
    where: dict[str, str] = column("where", default=dict)
    up_to: str = column("up to")
    printed: str = column("printed")
    ours: str | None = column("ours")
    verdict: str | None = column("verdict")
    difference: str | None = column("difference")
    why: str = column("why", default="")
    leading_printed: str | None = column("leading, printed")
    leading_ours: str | None = column("leading, ours")
    leading_agrees: bool | None = column("leading order agrees")
    values: list[dict[str, Any]] = column("values", default=list)
    domain: list[str] = column("domain", default=list)
    method: str | None = column("method")
    verified_at: list[dict[str, int]] = column("verified at", default=list)
    notes: list[str] = column("notes", default=list)
    skipped: str | None = column("skipped")
