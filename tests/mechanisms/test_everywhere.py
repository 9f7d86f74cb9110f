"""What torch asks of every module: compiled, in every number format, trained, copied, counted."""

import copy
import io
import pickle

import pytest
import torch
from torch.backends import mkldnn

from attnprof import registry
from attnprof.measure.clocks import onednn_restored
from tests.mechanisms.cases import HASHES, built, causals, inputs
from tests.mechanisms.checks import check_gradients
from tests.mechanisms.variants import TEXTS, VARIANTS

SHAPE = (2, 7, 2, 4)
ALL = [*((name, {}) for name in registry.names()), *TEXTS]


def ran(layer, x, causal):
    """Output and the input's gradient."""
    x = x.clone().requires_grad_()
    y = layer(x, causal=causal)
    y.square().sum().backward()
    return y.detach(), x.grad


#: One of each kind of function whose backward pass is its own, and one without any, but for those
#: of many operations, which take seconds.
KINDS = ("linear", "longformer", "neural", "sdpa", "taylor-efficient")
AHEAD = [*((name, {}) for name in KINDS), ("he", {"impl": "fft"})]


# torch looks at the gradients of what crosses a break of the graph
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(("name", "more"), ALL)
def test_a_compiled_layer_is_the_layer(name, more):
    layer, x = built(name, SHAPE, **more), inputs(SHAPE)
    causal = causals(name)[-1]
    torch.compiler.reset()  # the layers compiled before this one count against a limit
    # every mechanism's text becomes one graph; what is made of backward passes is tried by kind
    backend = "aot_eager" if (name, more) in AHEAD else "eager"
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    torch.testing.assert_close(ran(compiled, x, causal), ran(layer, x, causal))


# a function that keeps less there, one that does not ask, and one of its own chunks
@pytest.mark.parametrize("name", ["linear", "longformer", "neural"])
def test_a_layer_that_nobody_differentiates_compiles_whole_too(name):
    layer, x = built(name, SHAPE), inputs(SHAPE)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))


#: relative to the largest value: bfloat16 keeps 8 bits, and sums of them
CLOSE = {torch.bfloat16: 0.1, torch.float64: 1e-4}


@pytest.mark.parametrize(("name", "more"), ALL)
def test_other_number_formats_are_near_float32(name, more):
    layer, x = built(name, SHAPE, **more), inputs(SHAPE)
    for causal in causals(name):
        expected = ran(layer, x, causal)
        for dtype, near in CLOSE.items():
            outputs = ran(copy.deepcopy(layer).to(dtype), x.to(dtype), causal)
            for ours, theirs in zip(outputs, expected, strict=True):
                assert ours.dtype == dtype
                assert ours.isfinite().all()
                if name in HASHES:
                    continue
                off = (ours.float() - theirs).abs().max() / theirs.abs().max()
                assert off < near, dtype


def test_no_mechanism_makes_torch_do_without_onednn_for_half_formats():
    shape = (1, 46, 4, 8)  # ragged blocks, whose rows lie between those of the next head
    with onednn_restored():
        for name in registry.names():
            layer, x = built(name, shape).bfloat16(), inputs(shape).bfloat16()
            for causal in causals(name):
                ran(layer, x, causal)
                assert mkldnn.enabled, name


DIFFERENTIATED = [(name, (1, 5, 2, 2), {}) for name in registry.names()] + VARIANTS


@pytest.mark.parametrize(("name", "shape", "more"), DIFFERENTIATED, ids=str)
def test_gradients_of_input_and_parameters_are_numerical_ones(name, shape, more):
    layer, x = built(name, shape, torch.float64, **more), inputs(shape, torch.float64)
    check_gradients(layer, x[:1], causals(name), parameters=True, fast_mode=True)


@pytest.mark.parametrize("name", registry.names())
def test_copies_pickles_and_state_dicts_compute_the_same(name):
    layer, x = built(name, SHAPE), inputs(SHAPE)
    loaded = built(name, SHAPE)
    stream = io.BytesIO()
    torch.save(layer.state_dict(), stream)
    stream.seek(0)
    loaded.load_state_dict(torch.load(stream, weights_only=True))
    with torch.no_grad():
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
            assert torch.equal(other(x), layer(x))
