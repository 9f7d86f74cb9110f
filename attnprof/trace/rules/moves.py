"""Operations without FLOPs: views move nothing, moves cost their bytes."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Names separated by spaces."""
    return frozenset(text.split())


#: Nothing moves: another look at the same storage, memory nobody has written yet, a question.
VIEWS = words(
    """
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
    """
)

#: Work without real operations: their bytes count.
MOVES = words(
    """
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
    isnan isinf isfinite isposinf isneginf isreal signbit gcd lcm _int_mm bincount
    rand randn randint randperm rand_like randn_like randint_like bernoulli normal uniform random
    exponential geometric cauchy log_normal normal_functional
    """
)

#: In-place operations that do not read what they overwrite.
OVERWRITES = words(
    """
    copy_ fill_ zero_ bernoulli_ normal_ uniform_ random_ exponential_ geometric_ cauchy_
    log_normal_
    """
)
