"""Operations entry by entry: what each of them counts, written out by hand."""

import pytest
import torch
from torch.nn import functional as F

from tests.trace.counted import counted, counted_by_symbols, each, named

SHAPE = (2, 3, 7)
N = 42
aten = torch.ops.aten

#: what an entry counts → functions of ``torch``, and of ``torch.nn.functional``
TORCH = {
    "O": "sqrt log log2 log1p sin cos tan erf erfc tanh abs neg sign floor round",
    "E": "exp exp2 expm1",
    "O D": "rsqrt",
    "E A D": "sigmoid",
    "A D O": "logit",
    "O A": "frac",
    "": "tril isnan",
}
FUNCTIONAL = {
    "O": "relu",
    "3M A O": "gelu",
    "E A D": "silu",
    "M E 2O": "mish",
    "3M E O": "elu selu celu",
    "M O": "leaky_relu",
    "M E D 2O": "softplus",
    "E A 3O": "logsigmoid",
    "2O": "hardtanh relu6",
    "A M D 2O": "hardswish",
    "A D 2O": "hardsigmoid",
    "2A 2O": "softshrink",
    "O A D": "softsign",
}
#: call on one tensor → operations an entry
ONE = {
    **{name: (getattr(torch, name), of) for of, names in TORCH.items() for name in names.split()},
    **{name: (getattr(F, name), of) for of, names in FUNCTIONAL.items() for name in names.split()},
    "x + x": (lambda x: x + x, "A"),
    "x - x": (lambda x: x - x, "A"),
    "1 - x": (lambda x: 1 - x, "A"),
    "x + 3x": (lambda x: x.add(x, alpha=3), "A M"),
    "x - 1x": (lambda x: x.add(x, alpha=-1), "A"),
    "2x": (lambda x: 2 * x, "M"),
    "x / 2": (lambda x: x / 2, "D"),
    "1 / x": (lambda x: 1 / x, "D M"),  # torch multiplies the reciprocal
    "floor of x / 2": (lambda x: x.div(2, rounding_mode="floor"), "D O"),
    "x // 2": (lambda x: x // 2, "D O"),
    "x % 2": (lambda x: x % 2, "D"),
    "square": (lambda x: x.square(), "M"),
    "x ** 2": (lambda x: x**2, "M"),
    "x ** 3": (lambda x: x**3, "2M"),
    "x ** -1": (lambda x: x**-1, "D"),
    "x ** 0.5": (lambda x: x**0.5, "O"),
    "x ** 0.3": (lambda x: x**0.3, "O"),
    "x ** x": (lambda x: x**x, "O"),
    "2 ** x": (lambda x: 2**x, "O"),
    "atan2": (lambda x: torch.atan2(x, x), "O"),
    "hypot": (lambda x: torch.hypot(x, x), "2M A O"),
    "lgamma": (torch.lgamma, "O"),
    "digamma": (torch.digamma, "O"),
    "polygamma": (lambda x: torch.polygamma(2, x), "O"),
    "degrees": (torch.rad2deg, "M"),
    "maximum": (lambda x: torch.maximum(x, x), "O"),
    "max of two": (lambda x: torch.max(x, x), "O"),
    "clamp": (lambda x: x.clamp(0, 1), "2O"),
    "clamp low": (lambda x: x.clamp(min=0), "O"),
    "clamp high": (lambda x: x.clamp(max=0), "O"),
    "clamp by tensors": (lambda x: x.clamp(x, x), "2O"),
    "x > x": (lambda x: x.gt(x), "O"),
    "x == 0": (lambda x: x == 0, "O"),
    "addcmul": (lambda x: torch.addcmul(x, x, x), "M A"),
    "addcmul scaled": (lambda x: torch.addcmul(x, x, x, value=0.5), "2M A"),
    "addcdiv": (lambda x: torch.addcdiv(x, x, x), "D A"),
    "addcdiv scaled": (lambda x: torch.addcdiv(x, x, x, value=0.5), "D M A"),
    "lerp": (lambda x: torch.lerp(x, x, 0.3), "2A M"),
    "xlogy": (lambda x: torch.xlogy(x, x), "M O"),
    "logaddexp": (lambda x: torch.logaddexp(x, x), "2A E 3O"),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), "6M 2A O"),
    "threshold": (lambda x: F.threshold(x, 1, 2), "O"),
    "softmax": (lambda x: x.softmax(-1), "O 2A E D"),
    "softmax over the middle": (lambda x: x.softmax(1), "O 2A E D"),
    "cumsum": (lambda x: x.cumsum(-1), "A"),
    "cumprod": (lambda x: x.cumprod(-1), "M"),
    "cummax": (lambda x: x.cummax(-1), "O"),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), "3O 2A E"),
    "dropout": (lambda x: torch.native_dropout(x, 0.1, train=True), "2M"),
    "where": (lambda x: torch.where(x == 0, x, x), "O"),
    "masked fill": (lambda x: x.masked_fill(torch.ones(SHAPE, dtype=torch.bool), 0), ""),
    "cat": (lambda x: torch.cat([x, x]), ""),
    "to half": (lambda x: x.half(), ""),
    "flip": (lambda x: x.flip(1), ""),
    "not equal": (lambda x: (x == 0).logical_not(), "O"),
}

#: backward operations, called themselves with the gradient first
BACKWARD = {
    "relu": (lambda x: aten.threshold_backward(x, x, 0), "O"),
    "sigmoid": (lambda x: aten.sigmoid_backward(x, x), "2M A"),
    "tanh": (lambda x: aten.tanh_backward(x, x), "2M A"),
    "gelu": (lambda x: aten.gelu_backward(x, x), "7M 2A E O"),
    "gelu tanh": (lambda x: aten.gelu_backward(x, x, approximate="tanh"), "12M 5A O"),
    "silu": (lambda x: aten.silu_backward(x, x), "3M 3A E D"),
    "mish": (lambda x: aten.mish_backward(x, x), "4M 3A 2E D 2O"),
    "elu": (lambda x: aten.elu_backward(x, 1.0, 1.0, 1.0, False, x), "5M E O"),
    "elu in place": (lambda x: aten.elu_backward(x, 1.0, 1.0, 1.0, True, x), "3M A O"),
    "leaky": (lambda x: aten.leaky_relu_backward(x, x, 0.1, False), "M O"),
    "softplus": (lambda x: aten.softplus_backward(x, x, 1.0, 20.0), "2M E D A O"),
    "log sigmoid": (lambda x: aten.log_sigmoid_backward(x, x, x), "2M 2A D O"),
    "smooth l1": (lambda x: aten.smooth_l1_loss_backward(x, x, x, 0, 1.0), "A 3M D 2O"),
    "huber": (lambda x: aten.huber_loss_backward(x, x, x, 0, 1.0), "A 4M 2O"),
    "hardtanh": (lambda x: aten.hardtanh_backward(x, x, -1.0, 1.0), "2O"),
    "hardswish": (lambda x: aten.hardswish_backward(x, x), "A M D 2O"),
    "softmax": (lambda x: aten._softmax_backward_data(x, x, -1, torch.float32), "2M 2A"),
    "log softmax": (lambda x: aten._log_softmax_backward_data(x, x, -1, torch.float32), "M 2A E"),
    "dropout": (lambda x: aten.native_dropout_backward(x, x > 0, 2.0), "2M O"),
}


#: torch's own decompositions take their place in a symbolic run; a derivation notices, and refuses
DECOMPOSED = {"softshrink"}


@pytest.mark.parametrize("call", [*ONE, *(f"{name}, backward" for name in BACKWARD)])
def test_an_entry_counts(call):
    run, expected = ONE[call] if call in ONE else BACKWARD[call.removesuffix(", backward")]
    assert counted(run, SHAPE) == each(expected, N)
    if call not in DECOMPOSED:
        assert counted_by_symbols(run, SHAPE) == each(expected, N)


INTEGERS = [
    lambda x: x + x, lambda x: x * 2, lambda x: x // 2, lambda x: x % 2, lambda x: x > 0,
    lambda x: x.clamp(0, 1), lambda x: x.sum(), lambda x: x.cumsum(0), lambda x: x.max(),
    lambda x: x.abs(), lambda x: x.sort(), lambda x: x & x, lambda x: x**2, lambda x: x.prod(),
    lambda x: torch.bmm(x, x.mT), lambda x: x.bool().any(),
]  # fmt: skip


@pytest.mark.parametrize("run", INTEGERS)
def test_integers_count_nothing(run):
    assert counted(run, SHAPE, dtype=torch.int64) == {}


def test_a_ratio_of_integers_is_a_division():
    assert counted(lambda x: x / 2, SHAPE, dtype=torch.int64) == {"D": N}


COMPLEX = {
    "sum of two": (lambda z: z + z, "2A"),
    "product": (lambda z: z * z, "4M 2A"),
    "square": (lambda z: z**2, "4M 2A"),
    "ratio": (lambda z: z / z, "6M 3A 2D"),
    "over reals": (lambda z: z / z.real, "2D"),
    "modulus": (lambda z: z.abs(), "2M A O"),
    "exponential": (lambda z: z.exp(), "E 2O 2M"),
    "conjugate": (lambda z: z.conj().clone(), ""),
    "sum": (lambda z: z.sum(), "2A"),
    "product of all": (lambda z: z.prod(), "4M 2A"),
}


@pytest.mark.parametrize("call", COMPLEX)
def test_a_complex_entry_counts_its_real_operations(call):
    run, expected = COMPLEX[call]
    assert counted(run, SHAPE, dtype=torch.complex64) == each(expected, N)


def test_complex_operations_without_a_rule_are_named():
    assert named(torch.tanh, SHAPE, dtype=torch.complex64) == {"aten.tanh"}


def test_the_gradient_of_lgamma_is_a_digamma_and_a_product():
    assert counted(torch.lgamma, SHAPE, backward=True) == each("M O", N)


#: operations with an in-place spelling, by what else they take
ALONE = """exp log sqrt rsqrt neg abs sigmoid tanh relu erf floor round reciprocal square silu mish
hardtanh hardswish leaky_relu elu tril sin cos"""
WITH_ITSELF = "add sub mul div clamp_min clamp_max copysign eq ge fmod remainder"
TWICE_ITSELF = "addcmul addcdiv lerp"
REST = {"cumsum": (0,), "cumprod": (1,), "pow": (3,), "clamp": (0, 1)}


@pytest.mark.parametrize("name", [*f"{ALONE} {WITH_ITSELF} {TWICE_ITSELF}".split(), *REST])
def test_in_place_and_out_of_place_count_the_same(name):
    times = (name in WITH_ITSELF.split()) + 2 * (name in TWICE_ITSELF.split())

    def called(spelling):
        function = getattr(aten, spelling)
        return lambda x: function(x, *[x] * times, *REST.get(name, ()))

    assert counted(called(f"{name}_"), SHAPE) == counted(called(name), SHAPE)
