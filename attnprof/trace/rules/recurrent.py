"""Recurrent layers: ``nn.LSTM`` in float32, one operation in oneDNN; cells and layers step by step.

The scratch memory of a layer was measured, and agrees with oneDNN's ``cpu/rnn/rnn_utils.cpp``:
lines of numbers fill cache lines and are no multiple of 1 KiB, arrays fill whole pages.
"""

from functools import partial
from typing import Any

import torch

from attnprof.trace.events import Size
from attnprof.trace.rules.table import rules
from attnprof.trace.rules.units import MAC, OTHER, A, Counts, D, E, M
from attnprof.trace.rules.workspaces import UnknownWorkspaceError, copied, workspaces
from attnprof.trace.sizes import numel, size_of

#: oneDNN's number for an LSTM among recurrent layers.
_LSTM = 2
_GATES = 4
_least: Any = torch.sym_min
_most: Any = torch.sym_max


def _line(width: Any) -> Any:
    """Return the numbers in a line in memory."""
    whole = -(-width // 16) * 16
    return whole + 16 * (1 - _least(whole % 256, 1))


def _pages(numbers: Any) -> Any:
    """Return the bytes of whole pages that hold so many numbers."""
    return -(-4 * numbers // 4096) * 4096


def _saved(x: Any, width: Any) -> Any:
    """Return the bytes of gates, outputs and states of all steps, kept for the backward pass."""
    steps, batch, inputs = x.shape
    rows, states = steps * batch, 2 * (steps + 1) * batch
    widest = _line(_most(inputs, width))
    gates = _pages(rows * _line(_GATES * width)) + _pages(rows * _line(width))
    return gates + 3 * _pages(states * widest) + 2 * _pages(states * width)


def forward(x: Any, *args: Any) -> tuple[Any, ...]:
    """Return shapes of the result, the last states, and what the backward pass reads again."""
    h, c = args[4:6]
    y = x.new_empty(*x.shape[:2], h.shape[-1])
    keeps = torch.is_grad_enabled()
    saved = torch.empty(_saved(x, h.shape[-1]), dtype=torch.uint8) if keeps else None
    return y, torch.empty_like(h), torch.empty_like(c), saved


def backward(x: Any, *args: Any) -> tuple[Any, ...]:
    """Return shapes of gradients of the input, of weights and biases, and of the first states."""
    bias = args[0].new_empty(args[0].shape[0])  # also where there is none
    likes = (x, *args[:2], bias, bias, args[4], args[5])
    return tuple(torch.empty_like(like, memory_format=torch.contiguous_format) for like in likes)


def _products(call: Any) -> Counts:
    steps, batch, inputs, width = map(size_of, (*call.input.shape, call.hx_.shape[-1]))
    return MAC * (steps * batch) * _GATES * width * (inputs + width)


def _lstm_counts(out: Any, call: Any) -> Counts | None:
    """Count three sigmoids and two tangents of a cell, their products, and one sum of biases."""
    if call.mode != _LSTM:
        return None
    biases = A * _GATES * bool(call.has_biases)
    gates = A * _GATES  # of the input and of the state
    each = (E + A + D) * 3 + OTHER * 2 + 3 * M + A + gates + biases
    return _products(call) + each * numel(out[0]) + biases * size_of(call.hx_.shape[-1])


def _lstm_counts_backward(_out: Any, call: Any) -> Counts | None:
    """Count the product rule, cell by cell; gradients of states and biases are summed."""
    if call.mode != _LSTM:
        return None
    each = 16 * M + 6 * A + OTHER + A + A * _GATES
    return _products(call) * 2 + each * numel(call.output)


def _lstm_scratch(call: Any, *, backward: bool) -> Size:
    """Return bytes of biases added up, weights copied, scratch, and a gradient of each for a while.

    Outside of training the kernel depends on the processor: only what it keeps of all steps is
    known.
    """
    x, width = call.input, call.hx_.shape[-1]
    if call.mode != _LSTM or x.dtype != torch.float32:
        raise UnknownWorkspaceError
    (steps, batch, inputs), gates = x.shape, _GATES * width
    if not (backward or torch.is_grad_enabled()):
        wide = -(-width // 32) * 32
        raise UnknownWorkspaceError(
            size_of(4 * gates * (1 + steps * batch) + 16 * (inputs + width) * wide)
        )
    weights = 4 * (inputs + width) * _line(gates)
    scratch = 2 * _pages(batch * _line(width)) + _pages(gates) + 568
    total = scratch + _pages(steps * batch * _line(gates))
    if not call.has_biases:
        raise UnknownWorkspaceError(size_of(total))
    total += 4 * gates + weights
    if not backward:
        return size_of(total)
    total += 8 * batch * width
    for wide in (inputs, width):
        more = _line(wide)
        total += _least(more - wide, 1) * 4 * gates * more
    return size_of(total) + copied(call.grad_output)


rules({"mkldnn_rnn_layer": _lstm_counts, "mkldnn_rnn_layer_backward": _lstm_counts_backward})
workspaces({
    "mkldnn_rnn_layer": lambda _, call: _lstm_scratch(call, backward=False),
    "mkldnn_rnn_layer_backward": lambda _, call: _lstm_scratch(call, backward=True),
})  # fmt: skip


def lstm_function(_input: Any, hx: Any, params: Any) -> Any:
    """Return the function that runs a layer as torch does without symbols: oneDNN's, maybe."""
    numbers = {x.dtype for x in (_input, *hx, *(w for group in params for w in group))}
    in_onednn = torch._C._get_mkldnn_enabled() and numbers == {torch.float32}
    whole = in_onednn and hx[0].size(2) == hx[1].size(2)
    return _layer if whole else partial(_steps, hidden_fn=_lstm_step)


def _layer(x: Any, hidden: Any, params: Any, has_biases: bool, reverse: bool = False) -> Any:
    """Run the operation of a layer; torch's code would make a number of its symbolic width."""
    # in place of biases torch makes zeros as large as weights, the last ones first
    zeros = () if has_biases else [torch.zeros(w.shape, dtype=w.dtype) for w in params[::-1]]
    first = [state.contiguous() for state in hidden]
    how: Any = (reverse, [], _LSTM, 0, 1, has_biases, False, False, False)
    w = *params, *zeros[::-1]
    y, h, c, _ = torch.ops.aten.mkldnn_rnn_layer.default(x, *w, *first, *how)
    return y, (h, c)


# -- one step, as torch composes it, whose own code makes numbers of widths ---------------
_linear, _split = torch.ops.aten.linear, torch.ops.aten.unsafe_split


def _lstm_cell(x: Any, hx: Any, w: Any, w_h: Any, b: Any = None, b_h: Any = None) -> Any:
    return _gated(_linear(hx[0], w_h, b_h).add_(_linear(x, w, b)), hx[1])


def _lstm_step(x: Any, hx: Any, _w: Any, _b: Any, w_h: Any, b_h: Any, w_out: Any = None) -> Any:
    hidden, cell = _gated(_linear(hx[0], w_h, b_h).add_(x), hx[1])
    return hidden if w_out is None else hidden.matmul(w_out.t()), cell


def _gated(gates: Any, before: Any) -> Any:
    into, kept, new, out = _split(gates, before.shape[1], 1)
    into, kept, new, out = into.sigmoid_(), kept.sigmoid_(), new.tanh_(), out.sigmoid_()
    cell = (kept * before).add_(into * new)
    return out * cell.tanh(), cell


def _gru_cell(x: Any, hx: Any, w: Any, w_h: Any, b: Any = None, b_h: Any = None) -> Any:
    return _gru_step(_linear(x, w, b), hx, w, b, w_h, b_h)


def _gru_step(x: Any, hx: Any, _w: Any, _b: Any, w_h: Any, b_h: Any) -> Any:
    width = w_h.shape[1]
    from_input, hidden = _split(x, width, 1), _split(_linear(hx, w_h, b_h), width, 1)
    reset = hidden[0].add_(from_input[0]).sigmoid_()
    kept = hidden[1].add_(from_input[1]).sigmoid_()
    new = from_input[2].add(hidden[2].mul_(reset)).tanh_()
    return (hx - new).mul_(kept).add_(new)


def _simple(name: str) -> Any:
    def cell(x: Any, hx: Any, w: Any, w_h: Any, b: Any = None, b_h: Any = None) -> Any:
        hidden, from_input = _linear(hx, w_h, b_h), _linear(x, w, b)  # held to the end
        return getattr(hidden.add_(from_input), name)()

    return cell


def _simple_step(name: str) -> Any:
    def step(x: Any, hx: Any, _w: Any, _b: Any, w_h: Any, b_h: Any) -> Any:
        return getattr(_linear(hx, w_h, b_h).add_(x), name)()

    return step


CELLS: dict[Any, Any] = {
    torch.ops.aten.lstm_cell.default: _lstm_cell,
    torch.ops.aten.gru_cell.default: _gru_cell,
    torch.ops.aten.rnn_tanh_cell.default: _simple("tanh"),
    torch.ops.aten.rnn_relu_cell.default: _simple("relu"),
}


# -- layers, step by step, as torch composes them -----------------------------------------
def _steps(
    x: Any, hidden: Any, params: Any, has_biases: bool, hidden_fn: Any, reverse: bool = False,
    keepalive: Any = None,
) -> Any:  # fmt: skip
    w, w_h, *more = params
    b, b_h, *projection = more if has_biases else (None, None, *more)
    keepalive = {} if keepalive is None else keepalive
    keepalive["inputs"] = _linear(x, w, b).unbind(0)
    states = keepalive[reverse] = []
    for step in keepalive["inputs"][::-1] if reverse else keepalive["inputs"]:
        hidden = hidden_fn(step, hidden, w, b, w_h, b_h, *projection)
        states.append(hidden[0] if isinstance(hidden, tuple) else hidden)
    return torch.stack(states[::-1] if reverse else states, 0), hidden


def _layer_of(
    layer_fn: Any, x: Any, hidden: Any, params: Any, has_biases: bool, kept: dict[Any, Any]
) -> Any:
    """Run one layer in one direction or both, whose tensors are held until they are joined.

    oneDNN's are ``kept`` until the next layer has results of its own.
    """
    if len(hidden) == 1:
        y, end = layer_fn(x, hidden[0], params[0], has_biases)
        return y, [end]
    outputs = {} if isinstance(layer_fn, partial) else kept
    arguments: Any = {"keepalive": {}} if isinstance(layer_fn, partial) else {}
    outputs[False], end = layer_fn(x, hidden[0], params[0], has_biases, **arguments)
    outputs[True], start = layer_fn(x, hidden[1], params[1], has_biases, reverse=True, **arguments)
    return torch.cat([outputs[False], outputs[True]], -1), [end, start]


def _layers(
    x: Any, hidden: Any, params: Any, has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool, layer_fn: Any,
) -> Any:  # fmt: skip
    x, ends, directions = x.transpose(0, 1) if batch_first else x, [], 1 + bidirectional
    kept: dict[Any, Any] = {}
    if layer_fn is _layer:
        kept["input"] = x = x.contiguous()
    for first in range(0, directions * num_layers, directions):
        span = slice(first, first + directions)
        x, last = _layer_of(layer_fn, x, hidden[span], params[span], has_biases, kept)
        ends += last
        if train and dropout and span.stop < directions * num_layers:
            x = torch.dropout(x, dropout, train=True)
    return x.transpose(0, 1) if batch_first else x, ends


#: Functions to patch: torch's own drop nothing between layers, and copy steps, on symbolic sizes.
LAYERS: dict[str, Any] = {
    "select_one_layer_lstm_function": lstm_function,
    "one_layer_rnn": _steps,
    "_rnn_helper": _layers,
    "gru_cell": _gru_step,
    "rnn_cell": lambda function: _simple_step(function.__name__),
}
