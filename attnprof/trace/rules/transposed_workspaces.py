"""Scratch memory of transposed convolutions on the CPU.

A transposed convolution is the input's gradient of a convolution from its result to its input.
OneDNN runs it as that; torch's own kernel makes that one's columns. Of oneDNN's dense kernels with
a stride only two results inside are predicted, as a lower bound.
"""

from types import SimpleNamespace
from typing import Any

from attnprof.costs import maximum
from attnprof.trace.events import Size
from attnprof.trace.rules import convolution_workspaces as plain
from attnprof.trace.rules.convolution_workspaces import ALIGNED, Convolution, one_group, pixels
from attnprof.trace.rules.workspaces import UnknownWorkspaceError, copied, workspaces
from attnprof.trace.sizes import nbytes, product, size_of


def _forward(out: Any, call: Any) -> Size:
    if not call.transposed:
        return plain.forward(out, call)
    asked, mirrored = Convolution(call, out), _mirrored(call, out)
    if pixels(call.input) is not None:
        raise UnknownWorkspaceError
    copies = copied(call.input)
    if not asked.in_onednn:
        samples = size_of(call.input.shape[0])
        taken = one_group(asked, samples * _columns(asked, out), call.input)
        return copies + maximum(taken, nbytes(out) if asked.split else 0)
    strided, dilated = (any(s != 1 for s in x) for x in (call.stride, call.dilation))
    if (not asked.split and strided) or (asked.by_channel and dilated):
        raise UnknownWorkspaceError(copies + (1 + strided) * nbytes(out))
    if asked.split and not asked.by_channel:
        raise UnknownWorkspaceError(copies + nbytes(out))
    result, kernel, source = mirrored.blocked(few=False)
    inside = source + kernel + result
    if call.bias is not None:  # added to a result of its own
        return copies + inside + result + ALIGNED - nbytes(out)
    return copies + maximum(inside, nbytes(out) + result) - nbytes(out)


def _backward(out: Any, call: Any) -> Size:
    if not call.transposed:
        return plain.backward(out, call)
    a, grad, weight, asked = call.input, call.grad_output, call.weight, call.output_mask
    shape = Convolution(call, grad)
    if pixels(a) is not None or pixels(grad) is not None:
        raise UnknownWorkspaceError
    gradients = sum((nbytes(x) for x in out if x is not None), start=0)
    copies = copied(a, grad)
    if not shape.in_onednn:
        plainly = shape.one_by_one and all(s == 1 for s in call.stride) and not any(call.padding)
        taken = one_group(shape, 0 if plainly else _columns(shape, grad), a, grad)
        return copies + maximum(taken, gradients if shape.split else 0)
    if shape.split and not shape.by_channel:
        raise UnknownWorkspaceError(copies)
    held, mirrored = gradients, _mirrored(call, grad)
    if asked[0]:  # a convolution of the result's gradient
        inside = sum(mirrored.blocked(), start=0)
        held = maximum(held, maximum(inside, nbytes(a) + mirrored.blocked()[2]))
    if asked[1]:
        in_columns = size_of(weight.shape[-1]) > 3 or any(s != 1 for s in call.dilation)
        if not shape.by_channel or in_columns or plain.team() > 1:
            raise UnknownWorkspaceError(copies + held - gradients)
        inside = sum(mirrored.blocked(few=False), start=0)
        held = maximum(held, gradients - nbytes(weight) + inside)
    return copies + held - gradients


def _mirrored(call: Any, result: Any) -> Convolution:
    """Return the convolution that reads the result and gives the input."""
    return Convolution(SimpleNamespace(**{**vars(call), "input": result}), call.input)


def _columns(asked: Convolution, result: Any) -> Size:
    """Return the bytes of every entry under the kernel, for the entries of one sample."""
    taps = size_of(result.shape[1]) * product(asked.weight.shape[2:])
    return taps * product(asked.a.shape[2:]) * asked.a.element_size()


workspaces({"convolution": _forward, "convolution_backward": _backward})
