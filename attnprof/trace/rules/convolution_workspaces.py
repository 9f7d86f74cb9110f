"""Scratch memory of convolutions on the CPU, in torch's own kernels and in oneDNN's.

Torch chooses the library (``use_mkldnn`` in its ``Convolution.cpp``). Its own kernels copy the
entries under the kernel to columns; oneDNN copies input, kernel and result to blocks of as many
channels as a vector register holds. Not predicted: oneDNN's gradients of dense kernels of up to 14
columns, and those of the input under a stride.

A transposed convolution is the input's gradient of a convolution from its result to its input.
OneDNN runs it as that; torch's own kernel makes that one's columns. Of oneDNN's dense kernels with
a stride only two results inside are predicted, as a lower bound.
"""

import os
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
from torch import cpu
from torch import get_num_threads as threads

from attnprof.costs import at_least_one, ceil_div, exact_div, maximum, minimum, not_dearer
from attnprof.trace.events import Size
from attnprof.trace.rules.workspaces import (
    UnknownWorkspaceError,
    collapses,
    copied,
    is_contiguous,
    layout,
    same,
    workspaces,
)
from attnprof.trace.sizes import nbytes, product, size_of

#: Bytes to which oneDNN aligns a buffer that is no tensor.
_ALIGNED = 128
#: Results in a row that oneDNN's kernel by channel makes at once, with AVX-512.
_REACH = 6
#: oneDNN takes another algorithm where columns are so many times the tensors
#: (``gemm_convolution_utils``).
_REFUSED_FROM = 15
#: Columns of taps up to which oneDNN has kernels for a dense kernel's gradient.
_WIDEST_DENSE = 14
#: Results of a sample per thread from which samples run one after the other.
_MANY = 512


class Convolution:
    """A convolution's tensors (input, kernel, result) and settings.

    ``by_channel``: each channel has a kernel of its own; ``split``: there is more than one group.
    """

    def __init__(self, call: Any, result: Any) -> None:
        self.a, self.weight, self.result = call.input, call.weight, result
        self.stride, self.padding, self.dilation = call.stride, call.padding, call.dilation
        self.groups = size_of(call.groups)
        self.channels, self.results = size_of(self.a.shape[1]), size_of(self.weight.shape[0])
        self.by_channel = same(self.groups, self.channels) and same(self.groups, self.results)
        self.split = not same(self.groups, 1)
        self.one_by_one = all(size_of(size) == 1 for size in self.weight.shape[2:])

    @property
    def in_onednn(self) -> bool:
        """Whether torch runs it in oneDNN; a list of tokens is an image one token high."""
        return self.large and (not self.by_samples or _at_least(self.a.shape[0], 16))

    @property
    def by_samples(self) -> bool:
        """Whether oneDNN needs 16 samples: a 1x1 kernel without strides on one thread."""
        return self.one_by_one and not (self.strided or self.dilated) and threads() == 1

    @property
    def reads_entries(self) -> bool:
        """Whether a result reads one place of the input, and every place is read once."""
        return self.one_by_one and not self.strided and not any(self.padding)

    @property
    def strided(self) -> bool:
        """Whether results are further apart than entries."""
        return any(s != 1 for s in self.stride)

    @property
    def dilated(self) -> bool:
        """Whether the kernel skips entries: gradients are then made of columns."""
        return any(s != 1 for s in self.dilation)

    @property
    def far(self) -> bool:
        """Whether it is padded by more than oneDNN's kernel by channel reaches."""
        return self.by_channel and self.padding[-1] > _REACH

    @property
    def lowered(self) -> Size:
        """Bytes of one channel's columns, for each thread."""
        return _team() * 4 * product(self.weight.shape[2:]) * product(self.result.shape[2:])

    @property
    def low(self) -> bool:
        """Whether an image has fewer rows than the kernel, whose gradient then runs elsewhere."""
        rows, taps = self.a.shape[2], self.weight.shape[2]
        return self.a.dim() > 3 and taps > 1 and not _at_least(rows, taps)

    @property
    def large(self) -> bool:
        """Whether torch finds it large enough for oneDNN."""
        present = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if self.a.dtype != torch.float32 or not present:
            return False
        kernel = [size_of(s) for s in self.weight.shape[2:]]
        wide = len(kernel) > 1 and all(size > 3 for size in kernel[-2:])
        return (self.groups != 1 or wide or _at_least(self.a.shape[0], 2)
                or _at_least(self.a.numel(), 20481))  # fmt: skip

    def blocked(self, *, few: bool = True) -> tuple[Size, Size, Size]:
        """Return the bytes of input, kernel and result in oneDNN's layout.

        ``few``: the kernel for few channels, if there is one, reads the input as it lies.
        """
        channels, results = self.channels, self.results
        taps, result = product(self.weight.shape[2:]), _rounded(results) * _rest(self.result)
        if self.by_channel:
            source, pairs = _rounded(channels) * _rest(self.a), _rounded(results)
        elif self.groups != 1:
            raise UnknownWorkspaceError
        elif self.one_by_one or not few or _at_least(self.a.shape[1], _register()):
            source = _rounded(channels) * _rest(self.a)
            pairs = _rounded(channels) * _rounded(results)
        else:
            source, pairs = 0, channels * _rounded(results)
        return 4 * source, 4 * pairs * taps, 4 * result


def _rest(tensor: Any) -> Size:
    """Return samples times places: all sizes but channels."""
    return size_of(tensor.shape[0]) * product(tensor.shape[2:])


def _register() -> int:
    """Return how many float32 numbers the widest vector register holds that oneDNN finds."""
    if cpu._is_avx512_supported():
        return 16
    if cpu._is_avx2_supported():
        return 8
    raise UnknownWorkspaceError


def _rounded(channels: Size) -> Size:
    """Return channels in whole blocks."""
    return _register() * ceil_div(channels, _register())


def _at_least(size: Any, limit: int) -> bool:
    """Return whether a size reaches a limit; a symbolic one becomes a guard of the run."""
    return bool(size >= limit)


def _pixels(image: Any) -> Size | None:
    """Return bytes to copy an image whose channels come last; None if they come first.

    Lists of tokens are copied channel by channel before they are read.
    """
    sizes = layout(image)
    if len(sizes) < 4 or not same(sizes[1][1], 1) or is_contiguous(image):
        return None
    if same(sizes[-1][0], 1) and same(sizes[-1][1], 1):  # a list that was given a width
        return None
    wide = [sizes[at] for at in (0, *range(2, len(sizes)), 1) if sizes[at][0] != 1]
    return 0 if collapses(wide) else nbytes(image)


def _by_pixel(conv: Convolution, copies: Size, *, kernels: Size | None) -> Size:
    """Return bytes of a convolution that reads an image with channels last as it lies.

    ``copies`` are bytes copied before, ``kernels`` are bytes of sums, if known.
    """
    if not conv.in_onednn and conv.by_samples and conv.large:
        return copies
    plainly = conv.by_channel and not (conv.far or conv.dilated)
    if plainly and conv.in_onednn and kernels is not None:
        return copies + conv.blocked()[1] + kernels
    raise UnknownWorkspaceError(copies)


def _forward(out: Any, call: Any) -> Size:
    """Return the bytes that a convolution takes."""
    conv = Convolution(call, out)
    if (copies := _pixels(call.input)) is not None:
        return _by_pixel(conv, copies, kernels=0)
    plain = _one_group(conv, _columns(conv), call.input)
    plain = copied(call.input) + maximum(plain, nbytes(out) if conv.split else 0)
    samples = size_of(call.input.shape[0])
    if not conv.by_samples or isinstance(samples, int) or not conv.large:
        return _blocked_forward(conv, out, call) if conv.in_onednn else plain
    many = not_dearer(16, samples)  # either, with no condition on the samples
    return many * _blocked_forward(conv, out, call) + (1 - many) * plain


def _blocked_forward(conv: Convolution, out: Any, call: Any) -> Size:
    """Return the bytes that a convolution in oneDNN takes."""
    if conv.far:
        if _register() != 16 or _is_refused(conv.lowered, _team(), call.input, call.weight, out):
            raise UnknownWorkspaceError(copied(call.input) + nbytes(out))
        return copied(call.input) + maximum(nbytes(out), conv.lowered + _ALIGNED)
    source, kernel, result = conv.blocked()
    inside = source + kernel + result
    if call.bias is not None:  # laid out anew where blocks are not full
        partly = at_least_one(_rounded(conv.results) - conv.results)
        inside += partly * (4 * _rounded(conv.results) + _ALIGNED)
    return copied(call.input) + maximum(inside, nbytes(out) + result) - nbytes(out)


def _one_group(conv: Convolution, columns: Size, *read: Any) -> Size:
    """Return the bytes of one group, which torch does at a time: columns, copies of channels."""
    if not conv.split:  # it is read where it lies; so are the channels of one sample
        return columns
    several = _at_least(conv.a.shape[0], 2)
    copies = sum(map(nbytes, read), start=0) if several else 0
    return exact_div(columns + copies, conv.groups)


def _columns(conv: Convolution) -> Size:
    """Return the bytes of all entries under the kernel; 0 for a 1x1 kernel that reads the input."""
    if conv.reads_entries:
        return 0
    taps = conv.channels * product(conv.weight.shape[2:])
    return taps * _rest(conv.result) * conv.a.element_size()


def _backward(out: Any, call: Any) -> Size:
    """Return the bytes that a convolution's gradients take: the input's first, then the kernel's.

    Each copies its tensors anew.
    """
    a, weight, mask = call.input, call.weight, call.output_mask
    conv = Convolution(call, call.grad_output)
    sides = [size_of(size) for size in weight.shape[2:]]
    far = any(beyond > size // 2 for beyond, size in zip(conv.padding, sides, strict=True))
    by_taps = sides[-1] > 3 or far or conv.low or conv.dilated
    if (copies := _pixels(a)) is not None:
        again = _pixels(call.grad_output)
        copies += nbytes(call.grad_output) if again is None else again
        sums = nbytes(weight) + (4 * conv.results if mask[2] else 0)
        with_kernels = mask[1] and not by_taps
        return _by_pixel(conv, copies, kernels=sums if with_kernels else None)
    gradients = sum((nbytes(x) for x in out if x is not None), start=0)
    if not conv.in_onednn:
        scratch = _one_group(conv, _columns(conv) if mask[1] else 0, a, call.grad_output)
        again = copied(call.grad_output)
        if conv.split:  # a group's alone; in one dimension it is copied twice
            more = exact_div(again, conv.groups) if len(a.shape) == 3 else 0
            scratch, again = maximum(scratch + more, gradients), 0
        return copied(a) + again + scratch
    source, kernel, result = conv.blocked(few=False)
    peak = gradients
    wide = not conv.split and sides[-1] > _WIDEST_DENSE
    strided = mask[0] and not conv.by_channel and conv.strided
    if mask[0] and conv.by_channel and conv.dilated:
        peak = maximum(peak, nbytes(a) + maximum(nbytes(a), conv.lowered + _ALIGNED))
    elif mask[0]:
        copies = nbytes(a) if strided else source
        peak = maximum(peak, maximum(copies + kernel + result, nbytes(a) + copies))
    if mask[1] and (wide or (conv.by_channel and by_taps)):
        # columns and four kernels for each thread
        crew = _columns_team(conv)
        taps = 4 * product(weight.shape[1:]) * product(conv.result.shape[2:])
        inside = crew * (taps + 4 * nbytes(weight)) + 2 * _ALIGNED
        if _is_refused(inside, crew, a, weight, call.grad_output):
            raise UnknownWorkspaceError(copied(a, call.grad_output))
        peak = maximum(peak, gradients + inside)
    elif mask[1] and (conv.by_channel or _at_least(conv.a.shape[1], _register())):
        inside = source + kernel + result + _channels_summed(conv, kernel, bias=mask[2])
        peak = maximum(peak, gradients - nbytes(weight) + inside)
    scratch = copied(a, call.grad_output) + peak - gradients
    if strided or (mask[1] and not wide and not conv.by_channel):
        raise UnknownWorkspaceError(scratch)
    return scratch


def _is_refused(inside: Size, crew: int, *tensors: Any) -> bool:
    """Return whether oneDNN takes another algorithm, as columns are too many times the tensors."""
    most = _REFUSED_FROM * crew * sum(map(nbytes, tensors), start=0)
    return isinstance(inside, int) and isinstance(most, int) and inside > most


def _channels_summed(conv: Convolution, kernel: Size, *, bias: bool) -> Size:
    """Return bytes of the kernels in which threads without channels sum up samples."""
    if not conv.by_channel:
        return 0
    channels = _rounded(conv.results)
    teams = _team() // ceil_div(conv.results, _register())
    more = maximum(0, minimum(teams, size_of(conv.a.shape[0])) - 1)
    sums = 4 * channels if bias else 0
    return more * (kernel + sums) + at_least_one(more) * _ALIGNED * (1 + bias)


def _columns_team(conv: Convolution) -> int:
    """Return how many threads make columns; of a dense kernel each has samples of its own."""
    if conv.by_channel:
        return _team()
    pixels = prod(conv.result.shape[2:])
    if not conv.strided and not _at_least(pixels, 2):
        raise UnknownWorkspaceError(copied(conv.a, conv.result))
    if _team() == 1 or not _at_least(conv.a.shape[0], 2) or _at_least(pixels, _MANY * _team()):
        return 1
    return _team()


def _team() -> int:
    """Return the number of oneDNN's threads: no more than processors."""
    return min(threads(), len(os.sched_getaffinity(0)))


# -- transposed convolutions -------------------------------------------------------------
def _transposed(out: Any, call: Any) -> Size:
    """Return the bytes that a transposed convolution takes."""
    conv, mirrored = Convolution(call, out), _mirrored(call, out)
    if _pixels(call.input) is not None:
        raise UnknownWorkspaceError
    copies = copied(call.input)
    if not conv.in_onednn:
        samples = size_of(call.input.shape[0])
        scratch = _one_group(conv, samples * _spread(conv, out), call.input)
        return copies + maximum(scratch, nbytes(out) if conv.split else 0)
    if (not conv.split and conv.strided) or (conv.by_channel and conv.dilated):
        raise UnknownWorkspaceError(copies + (1 + conv.strided) * nbytes(out))
    if conv.split and not conv.by_channel:
        raise UnknownWorkspaceError(copies + nbytes(out))
    result, kernel, source = mirrored.blocked(few=False)
    inside = source + kernel + result
    if call.bias is not None:  # added to a result of its own
        return copies + inside + result + _ALIGNED - nbytes(out)
    return copies + maximum(inside, nbytes(out) + result) - nbytes(out)


def _transposed_backward(out: Any, call: Any) -> Size:
    """Return the bytes that a transposed convolution's gradients take."""
    a, grad, weight, mask = call.input, call.grad_output, call.weight, call.output_mask
    conv = Convolution(call, grad)
    if _pixels(a) is not None or _pixels(grad) is not None:
        raise UnknownWorkspaceError
    gradients = sum((nbytes(x) for x in out if x is not None), start=0)
    copies = copied(a, grad)
    if not conv.in_onednn:
        scratch = _one_group(conv, 0 if conv.reads_entries else _spread(conv, grad), a, grad)
        return copies + maximum(scratch, gradients if conv.split else 0)
    if conv.split and not conv.by_channel:
        raise UnknownWorkspaceError(copies)
    peak, mirrored = gradients, _mirrored(call, grad)
    if mask[0]:  # a convolution of the result's gradient
        inside = sum(mirrored.blocked(), start=0)
        peak = maximum(peak, maximum(inside, nbytes(a) + mirrored.blocked()[2]))
    if mask[1]:
        in_columns = size_of(weight.shape[-1]) > 3 or conv.dilated
        if not conv.by_channel or in_columns or _team() > 1:
            raise UnknownWorkspaceError(copies + peak - gradients)
        inside = sum(mirrored.blocked(few=False), start=0)
        peak = maximum(peak, gradients - nbytes(weight) + inside)
    return copies + peak - gradients


def _mirrored(call: Any, result: Any) -> Convolution:
    """Return the convolution that reads the result and gives the input."""
    return Convolution(SimpleNamespace(**{**vars(call), "input": result}), call.input)


def _spread(conv: Convolution, result: Any) -> Size:
    """Return the bytes of every entry under the kernel, for the entries of one sample."""
    taps = size_of(result.shape[1]) * product(conv.weight.shape[2:])
    return taps * product(conv.a.shape[2:]) * conv.a.element_size()


workspaces(
    {
        "convolution": lambda out, c: (_transposed if c.transposed else _forward)(out, c),
        "convolution_backward": lambda out, c: (
            _transposed_backward if c.transposed else _backward
        )(out, c),
    }
)
