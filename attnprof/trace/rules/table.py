"""The table of rules: counts of every operation, the bytes it moves, its kernel's scratch memory.

A rule gets the result and the call (arguments by the schema's names, defaults filled in) and
returns counts, or None for a case it does not know: the operation is then named as uncounted.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from attnprof.errors import RequestError, closest
from attnprof.trace import registered
from attnprof.trace.events import KINDS, Call, Size
from attnprof.trace.rules.units import NOTHING, Counts
from attnprof.trace.rules.workspaces import is_mask, rows_of, words, workspace_of
from attnprof.trace.sizes import expected_bytes, is_floating, nbytes, numel, product, size_of

#: Operations that move nothing: views, memory not yet written, questions about a tensor.
VIEWS = words("""
    view _unsafe_view reshape t transpose permute expand unsqueeze squeeze slice select split
    split_with_sizes unbind alias detach as_strided narrow chunk diagonal unfold _reshape_alias
    lift_fresh view_as view_as_real view_as_complex real imag movedim moveaxis swapaxes swapdims
    expand_as broadcast_to unflatten flatten ravel unsafe_split unsafe_chunk
    unsafe_split_with_sizes tensor_split _conj _neg_view resolve_conj resolve_neg adjoint mT mH
    unsqueeze_ squeeze_ t_ transpose_ detach_ as_strided_ swapaxes_ swapdims_ set_ resize_
    resize_as_ empty empty_like empty_strided empty_permuted new_empty new_empty_strided
    promote_types result_type sym_size sym_stride sym_numel sym_storage_offset sym_is_contiguous
    is_same_size dim numel size stride storage_offset is_pinned _has_compatible_shallow_copy_type
    _assert_async _assert_tensor_metadata _assert_scalar _functional_assert_async
    _functional_assert_scalar sym_constrain_range sym_constrain_range_for_size _version
    _is_zerotensor _efficientzerotensor _fused_sdp_choice requires_grad_ retain_grad
    _nested_tensor_from_mask_left_aligned
""")

#: Operations without FLOPs whose bytes count.
MOVES = words("""
    clone copy _to_copy fill zero zeros ones full arange range linspace logspace eye
    zeros_like ones_like full_like scalar_tensor new_zeros new_ones new_full lift
    tril_indices triu_indices fft_fftfreq fft_rfftfreq complex conj_physical _conj_physical
    _local_scalar_dense item equal nan_to_num copysign
    masked_fill where tril triu fill_diagonal masked_scatter masked_scatter_backward
    masked_select one_hot nonzero nonzero_static argwhere count_nonzero isin
    cat stack hstack vstack concatenate _chunk_cat repeat repeat_interleave tile constant_pad_nd
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d _pad_circular block_diag diag_embed diagflat flip fliplr flipud roll rot90
    pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle im2col meshgrid
    slice_backward select_backward slice_scatter select_scatter diagonal_backward
    diagonal_scatter as_strided_scatter value_selecting_reduction_backward
    gather index index_select index_copy index_fill take take_along_dim embedding
    _unsafe_index _unsafe_masked_index unfold_copy squeeze_copy unsqueeze_copy transpose_copy
    t_copy permute_copy expand_copy view_copy slice_copy select_copy split_copy
    split_with_sizes_copy unbind_copy alias_copy detach_copy as_strided_copy diagonal_copy
    narrow_copy view_as_real_copy view_as_complex_copy _reshape_alias_copy
    bitwise_and bitwise_or bitwise_not bitwise_xor bitwise_left_shift bitwise_right_shift
    and or xor lshift rshift iand ior ixor ilshift irshift
    logical_and logical_or logical_not logical_xor all any _is_all_true _is_any_true
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _linalg_check_errors
    isnan isinf isfinite isposinf isneginf isreal signbit gcd lcm _int_mm
    rand randn randint randperm rand_like randn_like randint_like bernoulli normal uniform random
    exponential geometric cauchy log_normal normal_functional
""")

#: Products with a matrix of weights, which read nothing if there is no row.
_PRODUCTS = frozenset({"mm", "addmm", "linear"})

#: In-place operations that do not read what they overwrite.
OVERWRITES = words("""
    copy_ fill_ zero_ bernoulli_ normal_ uniform_ random_ exponential_ geometric_ cauchy_
    log_normal_
""")

#: Operations that read some entries of a table, and return these.
_LOOKUPS = words("""
    embedding index_select index _unsafe_index _unsafe_masked_index take masked_select
""")
#: Operations that, in place, write only some entries.
_WRITES = words("""
    index_copy index_add index_reduce index_fill scatter_add scatter_reduce
    index_put _index_put_impl put
""")
#: In-place operations that always read what they add to.
_ADDS = words("index_add index_reduce scatter_add scatter_reduce")
#: Further operations that read some entries alone: the bytes left alone, from the call.
UNREAD: dict[str, Callable[[Any], Size]] = {}

OperationRule = Callable[[Any, Any], Counts | None]

RULES: dict[str, OperationRule] = {}
#: Rules of operations on functions: counts (None if unknown) and bytes of a call.
HIGHER: dict[str, Callable[[Any, Any], tuple[Counts | None, Any]]] = {}


def rule(names: str) -> Callable[[OperationRule], OperationRule]:
    """Enter a rule for these operations (without ``aten::``, overload or final ``_``)."""

    def enter(function: OperationRule) -> OperationRule:
        rules({names: function})
        return function

    return enter


def rules(table: Mapping[str, OperationRule]) -> None:
    """Enter several rules; names are separated by spaces."""
    for names, function in table.items():
        for name in names.split():
            if name in RULES:
                raise ValueError(f"{name} has two rules")
            RULES[name] = function


def per_entry(names: str, real: Counts, of_complex: Counts | None = None) -> None:
    """Enter a rule of fixed counts for each entry of the (first) result, if floating point."""

    def counts(out: Any, _call: Any) -> Counts | None:
        first = first_of(out)
        each = of_complex if first.is_complex() else real * first.is_floating_point()
        return None if each is None else each * numel(first)

    rules({names: counts})


def first_of(out: Any) -> Any:
    """Return the result, or the first of several."""
    return out[0] if isinstance(out, tuple | list) else out


def is_factor(value: Any) -> bool:
    """Return whether a scalar costs a multiplication: if symbolic, or neither 1 nor -1."""
    return hasattr(value, "node") or bool(abs(value) != 1)


def has_reals(call: Any) -> bool:
    """Return whether any operand is floating point."""
    return any(map(is_floating, tensors_in(vars(call))))


def cost_of(
    func: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any], choices: Any = None,
    **fields: Any,
) -> Call:  # fmt: skip
    """Return the record of a dispatched operation: costs, and further ``fields`` of the call.

    ``choices`` know how many of the experts each row chose, in models that route tokens.
    """
    full = name_of(func)
    fields = {"op": full.removeprefix("aten."), "part": "forward", "line": "", **fields}
    workspace: Size = 0
    counts: Counts | None = None
    scratch_known = False
    if full in HIGHER:
        counts, moved = HIGHER[full](args, out)
    elif isinstance(func, HigherOrderOperator):
        moved = sum(nbytes(x) for x in tensors_in((args, kwargs, out)))
    else:
        name, base, outs = _names(func)
        by_user = registered.registered(func._schema.name)
        if name in VIEWS or (_is_marker(func) and not by_user):
            return Call(counts={}, bytes_moved=0, **fields)
        passed = {key: value for key, value in kwargs.items() if key not in outs}
        call = bound(func, args, passed)
        moved = _moved(name, base, out, args, passed, choices)
        moved = moved - _unpicked_bytes(name, base, out, call)
        workspace, scratch_known = workspace_of(base, out, call)
        if by_user:
            values = registered.counts_of(func._schema.name, vars(call), out)
            counts = Counts({kind: values[kind] for kind in KINDS if kind in values})
            moved = values.get("bytes_moved", moved)
            workspace = values.get("workspace_bytes", workspace)
            scratch_known = "workspace_bytes" in values
        else:
            counts = RULES.get(base, lambda *_: NOTHING if base in MOVES else None)(out, call)
    if counts is None:
        fields |= {"uncounted": full, "touched": moved}
    return Call(
        counts=counts or {}, bytes_moved=moved, workspace=workspace,
        scratch="" if scratch_known else full, **fields,
    )  # fmt: skip


def _moved(name: str, base: str, out: Any, args: Any, passed: Any, choices: Any) -> Size:
    """Return the bytes an operation reads and writes; of experts only the chosen ones."""
    if base in _PRODUCTS and numel(out) == 0:  # of an expert that no row meets: nothing is read
        return 0
    # every operand is read once, every result written once; rows left alone are not
    makes = name.endswith("_like") or name.startswith("new_")
    read = [] if makes else tensors_in((args[1:] if name in OVERWRITES else args, passed))
    moved = sum(map(nbytes, [*tensors_in(out), *read]), start=0)
    if base == "_grouped_mm":
        moved = moved - _unmet_bytes(args[0], args[1], choices)
    if base in _PRODUCTS and choices:
        moved = moved - choices.unread(*args[1:3] if base == "addmm" else args[:2])
    return moved


def _unmet_bytes(rows: Any, weights: Any, choices: Any) -> Size:
    """Return the bytes of experts that no token meets; a row is one choice of a token."""
    number, experts = size_of(rows.shape[0]), size_of(weights.shape[0])
    if weights.dim() != 3 or rows.dim() != 2 or not isinstance(experts, int):
        return 0
    each = choices.each(experts, number) if choices else 1
    tokens = number // each if isinstance(number, int) else number / each
    return nbytes(weights) - expected_bytes(nbytes(weights), experts, each, tokens)


def _unpicked_bytes(name: str, base: str, out: Any, call: Any) -> Size:
    """Return the bytes of operands and results that a lookup or indexed write leaves alone.

    An embedding reads the rows of its tokens, not its table; a cache is written where the new token
    stands. The table counts as often as entries of it are picked: a row that is picked twice is
    read twice. ``gather`` and ``scatter``, whose index is about as large as their table, read and
    write all of it, and so does an operation that makes a new result (``name`` without a final
    ``_``).
    """
    if base in UNREAD:
        return UNREAD[base](call)
    if base in _LOOKUPS:
        table = call.weight if base == "embedding" else call.self
        return nbytes(table) - nbytes(out)
    if base in ("_embedding_bag", "_embedding_bag_forward_only"):
        row = size_of(call.weight.shape[1]) * call.weight.element_size()
        return nbytes(call.weight) - numel(call.indices) * row
    if base not in _WRITES or not name.endswith("_"):
        return 0
    written = _written_entries(base, call) * call.self.element_size()
    reads = base in _ADDS or bool(getattr(call, "accumulate", False) or getattr(call, "reduce", ""))
    return 2 * nbytes(call.self) - (1 + reads) * written


def _written_entries(base: str, call: Any) -> Size:
    """Return how many entries an operation writes; all, where a mask does not say."""
    if base == "index_fill":
        return numel(call.index) * rows_of(call.self, call.dim)
    if not hasattr(call, "indices"):
        return numel(call.source if base.startswith("index") else call.index)
    masks = [x for x in call.indices if x is not None and is_mask(x)]
    picked = call.self.dim() - sum(x.dim() - 1 for x in masks)
    return addressed(call) if not masks or call.values.dim() == picked else numel(call.self)


def addressed(call: Any) -> Size:
    """Return how many entries indices address; for a mask as index, the entries of the values."""
    used = [x for x in call.indices if x is not None]
    if any(is_mask(x) for x in used):
        return numel(call.values)
    entries = product(torch.broadcast_shapes(*(x.shape for x in used)))  # type: ignore[no-untyped-call]
    left = [size for place, size in enumerate(call.self.shape)
            if place >= len(call.indices) or call.indices[place] is None]  # fmt: skip
    return entries * product(left)


def check_registered() -> None:
    """Raise :class:`RequestError` for a user's rule for no operation, or one of ours.

    Operations of a library that nobody has imported are not known here.
    """
    for name in registered.names():
        library, _, op = name.partition("::")
        overloads = [x.partition("::")[2] for x in torch._C._dispatch_get_all_op_names()
                     if x.startswith(f"{library}::")]  # fmt: skip
        defined = sorted({x.partition(".")[0] for x in overloads})
        if defined and op not in defined:
            hint = closest(op, defined)
            raise RequestError(f"there is a rule for {name}, but {library} has no '{op}': {hint}")
        if library == "aten" and {op, op.removesuffix("_")} & (RULES.keys() | MOVES | VIEWS):
            raise RequestError(f"{name} has a rule of attnprof's own, which another cannot replace")


@cache
def name_of(func: Any) -> str:
    """Return an operation's name: ``aten.mm``, ``mylib.op``, ``higher_order.cond``."""
    if isinstance(func, HigherOrderOperator):
        return f"higher_order.{func._name}"
    return str(func._schema.name).replace("::", ".")


@cache
def _names(func: Any) -> tuple[str, str, frozenset[str]]:
    """Return the name, that without the final ``_`` of in-place ones, and arguments for results."""
    name: str = func._schema.name.removeprefix("aten::")  # others keep their library's
    base = name.strip("_") if name.startswith("__") else name.removesuffix("_")
    outs = frozenset(argument.name for argument in func._schema.arguments if argument.is_out)
    return name, base, outs


@cache
def _is_marker(func: Any) -> bool:
    """Return whether an operation neither takes nor gives tensors, as a profiler's range."""
    ends = (*func._schema.arguments, *func._schema.returns)
    return not any("Tensor" in str(end.type) for end in ends)


def bound(func: Any, args: tuple[Any, ...], passed: dict[str, Any]) -> SimpleNamespace:
    """Return a call's arguments by the schema's names, defaults filled in."""
    values = dict(_defaults(func))
    named = {name: value for name, value in passed.items() if name in values}
    values.update(zip(values, args, strict=False), **named)
    return SimpleNamespace(**values)


@cache
def _defaults(func: Any) -> dict[str, Any]:
    return {
        argument.name: argument.default_value if argument.has_default_value() else None
        for argument in func._schema.arguments
    }


#: Most arguments that are no tensors.
_NUMBERS = frozenset({int, float, bool, type(None)})


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return tensors in arguments or results, in order (faster than pytrees, for fewer types)."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    tensors: list[torch.Tensor] = []
    for item in value:  # asked of every operation several times
        if type(item) in _NUMBERS:
            continue
        if isinstance(item, torch.Tensor):
            tensors.append(item)
        elif isinstance(item, (tuple, list, dict)):
            tensors += tensors_in(item)
    return tensors
