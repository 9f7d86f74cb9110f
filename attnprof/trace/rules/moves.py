"""Operations without FLOPs: views move nothing, moves cost their bytes, some stay uncounted."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Nothing moves: another look at the same storage, or memory nobody has written yet.
VIEWS = _words(
    """
    promote_types view _unsafe_view reshape t transpose permute expand unsqueeze squeeze slice
    select split split_with_sizes unbind alias detach as_strided narrow chunk diagonal unfold
    _reshape_alias lift_fresh view_as unsqueeze_ squeeze_ t_ transpose_ detach_ empty empty_like
    empty_strided new_empty new_empty_strided view_as_real view_as_complex real imag movedim
    swapaxes expand_as unflatten flatten squeeze_copy sym_size sym_stride sym_numel
    sym_storage_offset is_same_size
    """
)

#: Work without real operations: their bytes count.
MOVES = _words(
    """
    clone copy _to_copy fill zero zeros ones full arange zeros_like ones_like full_like
    scalar_tensor new_zeros new_ones new_full masked_fill where tril triu cat stack repeat
    repeat_interleave constant_pad_nd slice_backward select_backward slice_scatter
    select_scatter gather scatter index index_select index_put index_fill flip roll
    unfold_backward bitwise_and bitwise_or bitwise_not bitwise_xor logical_and logical_or
    logical_not logical_xor remainder searchsorted index_copy eye embedding diagonal_backward
    as_strided_scatter conj_physical _conj _neg_view resolve_conj resolve_neg lift
    isnan isinf isfinite any all nonzero one_hot linspace tril_indices triu_indices
    randn rand randint randperm randn_like rand_like bernoulli normal uniform random
    masked_scatter masked_select take take_along_dim take_along_axis pad reflection_pad1d
    replication_pad1d im2col col2im pixel_shuffle channel_shuffle rot90 diag_embed
    _assert_async _assert_tensor_metadata _unsafe_index _local_scalar_dense bucketize
    split_with_sizes_copy complex polar_ channels_last meshgrid tile fill_diagonal
    _nested_tensor_from_mask_left_aligned bitwise_left_shift bitwise_right_shift floor_divide_int
    __lshift__ __rshift__ and or xor lshift rshift
    """
)

#: Operations whose work has no closed form of ours; named wherever they run, bytes counted.
UNCOUNTED = _words("sort argsort topk msort unique unique_consecutive _unique2 kthvalue median")

#: In-place operations that do not read what they overwrite.
OVERWRITES = frozenset({"copy_", "fill_", "zero_"})
