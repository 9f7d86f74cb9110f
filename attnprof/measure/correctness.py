"""Does a module compute what it claims: asked once, at a small shape, before it is timed.

Its output is held against the same weights in another number format, against another
implementation of the same function where the mechanism names one, and, where it is causal, against
itself: rows must not move when later tokens do, and decoding steps must give the same rows. In
training gradients are held against those of another format, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from attnprof import registry
from attnprof.measure.modules import is_module
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import build_subject, make_inputs, make_module

#: Tokens (odd, no multiple of a block), heads and the largest head width of the check.
TOKENS, HEADS, WIDTH = 33, 2, 16
#: Decoding steps that are compared.
STEPS = 9
#: Largest difference allowed, as a share of the largest output: about ten roundings of a short
#: format; hundreds of float32, for iterated inverses multiply them.
ALLOWED = {"float64": 1e-9, "float32": 3e-5, "float16": 1e-2, "bfloat16": 8e-2}


@dataclass(frozen=True)
class Verdict:
    """``wrong`` says what differs, None where nothing does; ``against`` what it was held against.

    Both are None where the mechanism cannot be built at the small shape.
    """

    wrong: str | None = None
    against: str | None = None


_FOUND: dict[tuple[Any, ...], Verdict] = {}


def check_module(request: PointRequest) -> Verdict:
    """The verdict on a mechanism with these parameters, number format, mask, phase and device.

    Found once in a process; a module of somebody's own is not checked.
    """
    if is_module(request.mechanism):  # it claims nothing
        return Verdict()
    key = check_key(request)
    if key not in _FOUND:
        _FOUND[key] = _verdict(request)
    return _FOUND[key]


def check_key(request: PointRequest) -> tuple[Any, ...]:
    """Points with the same key have the same verdict."""
    return (
        request.mechanism, repr(sorted(request.params.items())), request.dtype, request.causal,
        _KINDS[request.phase], request.scope, request.device, request.seed,
        min(WIDTH, request.head_dim),
    )  # fmt: skip


#: Phases that are checked alike.
_KINDS = {"forward": "forward", "backward": "training", "train": "training", "decode": "decode"}


def _verdict(request: PointRequest) -> Verdict:
    import torch

    decodes = request.phase == "decode"
    small = replace(
        request, seq_len=TOKENS, num_heads=HEADS, head_dim=min(WIDTH, request.head_dim),
        batch_size=1, phase="forward", causal=request.causal or decodes,
    )  # fmt: skip
    checks: list[Callable[[SmallModule], Compared | None]] = [in_another_format, by_other_code]
    checks += [without_later_tokens] if small.causal else []
    checks += [step_by_step] if decodes else []
    checks += [gradients] if _KINDS[request.phase] == "training" else []
    state = torch.get_rng_state()
    try:
        with torch.device(request.device), torch.no_grad():
            sample = SmallModule.of(small)
            found = [compared for check in checks if (compared := check(sample)) is not None]
    except Exception:  # noqa: BLE001 - a plug-in may raise anything at a shape this small
        return Verdict()  # what it does at the point's own shape is told there
    finally:
        torch.set_rng_state(state)
    wrong = next((item.complaint(small) for item in found if not item.holds), None)
    return Verdict(wrong, "; ".join(item.against for item in found) or None)


@dataclass(frozen=True)
class Compared:
    """What an output was held ``against`` and how far it is off: a share of the largest value."""

    against: str
    off: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Near enough; not a number is not."""
        return self.off <= self.allowed

    def complaint(self, small: PointRequest) -> str:
        """Why a point is not measured."""
        return (
            f"does not compute what it claims: at {small.seq_len} tokens its {small.dtype} output "
            f"is {self.off:.2g} of the largest value away from {self.against} "
            f"({self.allowed:g} allowed); --no-check measures it all the same"
        )


@dataclass(frozen=True)
class SmallModule:
    """A small module, its inputs and its output."""

    request: PointRequest
    module: Any
    inputs: list[Any]
    output: Any

    @classmethod
    def of(cls, request: PointRequest) -> SmallModule:
        """Built and run on torch's default device."""
        module = make_module(request)
        inputs = make_inputs(request)
        return cls(request, module, inputs, _ran(module, inputs, request.causal))


def _ran(module: Any, inputs: list[Any], causal: bool) -> Any:
    return module(*(x.clone() for x in inputs), causal=causal)


def _off(output: Any, expected: Any) -> float:
    """Largest difference over the largest expected value."""
    output, expected = output.double(), expected.double()
    return float((output - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def check_code(request: PointRequest, run: Callable[[], Any]) -> str | None:
    """Why compiled code is wrong: its forward pass against the module's own, at the point's shape.

    None where it is right, and in other phases.
    """
    if request.phase != "forward":
        return None
    off = _off(run(), build_subject(request).call())
    if off <= ALLOWED[request.dtype]:
        return None
    return (
        f"compiled code does not compute what the module does: its output is {off:.2g} of the "
        f"largest value away ({ALLOWED[request.dtype]:g} allowed); --no-check measures it all "
        "the same"
    )


def _copied(sample: SmallModule, request: PointRequest) -> Any:
    """A module of another format or mechanism with the sample's weights; None if it has others."""
    module, weights = make_module(request), sample.module.state_dict()
    if {k: v.shape for k, v in module.state_dict().items()} != {
        k: v.shape for k, v in weights.items()
    }:
        return None
    module.load_state_dict(weights)
    return module


def in_another_format(sample: SmallModule) -> Compared | None:
    """float64 on the same weights and inputs; float32 where float64 was asked for."""
    given = sample.request.dtype
    other = "float32" if given == "float64" else "float64"
    expected = _in_format(sample, sample.request, other)
    if expected is None:
        return None
    allowed = max(ALLOWED[given], ALLOWED[other])
    return Compared(other, _off(sample.output, expected), allowed)


def by_other_code(sample: SmallModule) -> Compared | None:
    """The implementation that the mechanism names as computing the same, both in float64."""
    twin = twin_of(sample.request)
    if twin is None:
        return None
    own, other = (_in_format(sample, asked, "float64") for asked in (sample.request, twin))
    if own is None or other is None:
        return None
    usual = registry.get(twin.mechanism).params
    settings = [f"{k}={v}" for k, v in twin.params.items() if v != usual[k]]
    label = " ".join([twin.mechanism, *settings])
    return Compared(label, _off(own, other), ALLOWED["float64"])


def gradients(sample: SmallModule) -> Compared | None:
    """Gradients of inputs and parameters, of an output gradient of ones, in another format."""
    import torch

    request = sample.request
    other = "float32" if request.dtype == "float64" else "float64"
    module = _copied(sample, replace(request, dtype=other))
    if module is None:
        return None
    found = _gradients(sample.module, sample.inputs, request.causal)
    wider = [x.to(getattr(torch, other)) for x in sample.inputs]
    expected = _gradients(module, wider, request.causal)
    allowed = max(ALLOWED[request.dtype], ALLOWED[other])
    return Compared(f"{other} in its gradients", _off(found, expected), allowed)


def _gradients(module: Any, inputs: list[Any], causal: bool) -> Any:
    """All gradients in one row, so that those which should be zero are held against the largest."""
    import torch

    leaves = [x.clone().requires_grad_() for x in inputs]
    with torch.enable_grad():
        module(*leaves, causal=causal).sum().backward()
    leaves += list(module.parameters())
    found = [leaf.grad.double().flatten() for leaf in leaves if leaf.grad is not None]
    module.zero_grad()
    return torch.cat(found)


def _in_format(sample: SmallModule, request: PointRequest, dtype: str) -> Any:
    """The output in a number format; None where torch cannot, or the weights differ.

    Code of a plug-in may be written for one format: ``checked`` then does not name the other.
    """
    import torch

    try:
        module = _copied(sample, replace(request, dtype=dtype))
        if module is None:
            return None
        inputs = [x.to(getattr(torch, dtype)) for x in sample.inputs]
        return _ran(module, inputs, sample.request.causal)
    except RuntimeError:  # torch's word for all it cannot do, NotImplementedError included
        return None


def without_later_tokens(sample: SmallModule) -> Compared:
    """The first half of the rows, the tokens after them drawn anew."""
    import torch

    half = TOKENS // 2
    changed = [x.clone() for x in sample.inputs]
    for x in changed:
        x[..., half:, :] = torch.randn_like(x[..., half:, :])
    again = _ran(sample.module, changed, causal=True)
    dtype = sample.request.dtype
    off = _off(again[..., :half, :], sample.output[..., :half, :])
    return Compared("itself with other later tokens", off, ALLOWED[dtype])


def step_by_step(sample: SmallModule) -> Compared:
    """The first rows of the whole pass, decoded one by one."""
    import torch

    module, request = sample.module, sample.request
    if request.scope == "layer":
        state = module.init_state(1)
    else:
        state = module.init_state(1, sample.inputs[0].new_empty(0))
    rows = []
    for token in range(STEPS):
        one = [x[..., token : token + 1, :].clone() for x in sample.inputs]
        row, state = module.step(*one, state)
        rows.append(row.clone())
    off = _off(torch.cat(rows, -2), sample.output[..., :STEPS, :])
    return Compared("the whole causal pass", off, ALLOWED[request.dtype])


def twin_of(request: PointRequest) -> PointRequest | None:
    """The request of the mechanism's ``same_as`` with the parameters both have; None if itself."""
    spec = request.spec
    named, settings = spec.same_as or ("", {})
    inherited = named and "same_as" not in vars(type(spec))
    if spec.same_as is None or inherited:
        return None
    name = named or request.mechanism
    known = registry.get(name).params
    params = {k: v for k, v in request.params.items() if k in known} | settings
    if name == request.mechanism and registry.get(name, **params) == spec:
        return None
    return replace(request, mechanism=name, params=params)
