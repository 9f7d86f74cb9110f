"""Does a module compute what it claims: asked once, at a small shape, before it is timed.

Its output is held against the same weights in another number format, against another
implementation of the same function where the mechanism names one, and, where it is causal, against
itself: rows must not move when later tokens do, and decoding steps must give the same rows. In
training gradients are held against those of another format, too. Where that is asked, its output
is held against softmax attention's, on the same q, k and v: an approximation is as good as that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from attnprof import registry
from attnprof.errors import RequestError
from attnprof.measure.request import PointRequest, UserModule, is_module
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
            sample = SmallModule(small)
            found = [compared for check in checks if (compared := check(sample)) is not None]
    except Exception:  # noqa: BLE001 - a plug-in may raise anything at a shape this small
        return Verdict()  # what it does at the point's own shape is told there
    finally:
        torch.set_rng_state(state)
    wrong = None
    if bad := next((item for item in found if not item.off <= item.allowed), None):  # or no number
        wrong = (
            f"does not compute what it claims: at {TOKENS} tokens its {small.dtype} output is "
            f"{bad.off:.2g} of the largest value away from {bad.against} "
            f"({bad.allowed:g} allowed); --no-check measures it all the same"
        )
    return Verdict(wrong, "; ".join(item.against for item in found) or None)


class Compared(NamedTuple):
    """What an output was held ``against`` and how far it is off: a share of the largest value."""

    against: str
    off: float
    allowed: float


class SmallModule:
    """A small module, its inputs and its output, on torch's default device."""

    def __init__(self, request: PointRequest) -> None:
        self.request = request
        self.module = make_module(request)
        self.inputs = make_inputs(request)
        self.output = self.ran(self.module, self.inputs)
        #: The number format it is held against, and what it may be off then.
        self.other = "float32" if request.dtype == "float64" else "float64"
        self.allowed = max(ALLOWED[request.dtype], ALLOWED[self.other])

    def ran(self, module: Any, inputs: Sequence[Any]) -> Any:
        """A module's output."""
        return module(*(x.clone() for x in inputs), causal=self.request.causal)

    def copied(self, request: PointRequest) -> tuple[Any, list[Any]] | None:
        """A module of another format or mechanism with these weights, and these inputs for it.

        None if its weights are others.
        """
        import torch

        module, weights = make_module(request), self.module.state_dict()
        shapes = ({k: v.shape for k, v in some.items()} for some in (module.state_dict(), weights))
        if next(shapes) != next(shapes):
            return None
        module.load_state_dict(weights)
        return module, [x.to(getattr(torch, request.dtype)) for x in self.inputs]

    def in_format(self, request: PointRequest, dtype: str) -> Any:
        """The output in a number format; None where torch cannot, or the weights differ.

        Code of a plug-in may be written for one format: ``checked`` then does not name the other.
        """
        try:
            copy = self.copied(replace(request, dtype=dtype))
            return None if copy is None else self.ran(*copy)
        except RuntimeError:  # torch's word for all it cannot do, NotImplementedError included
            return None


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


def in_another_format(sample: SmallModule) -> Compared | None:
    """float64 on the same weights and inputs; float32 where float64 was asked for."""
    expected = sample.in_format(sample.request, sample.other)
    if expected is None:
        return None
    return Compared(sample.other, _off(sample.output, expected), sample.allowed)


def by_other_code(sample: SmallModule) -> Compared | None:
    """The implementation that the mechanism names as computing the same, both in float64."""
    twin = twin_of(sample.request)
    if twin is None:
        return None
    own, other = (sample.in_format(asked, "float64") for asked in (sample.request, twin))
    if own is None or other is None:
        return None
    usual = registry.get(twin.mechanism).params
    settings = [f"{k}={v}" for k, v in twin.params.items() if v != usual[k]]
    return Compared(" ".join([twin.mechanism, *settings]), _off(own, other), ALLOWED["float64"])


def gradients(sample: SmallModule) -> Compared | None:
    """Gradients of inputs and parameters, of an output gradient of ones, in another format."""
    copy = sample.copied(replace(sample.request, dtype=sample.other))
    if copy is None:
        return None
    causal = sample.request.causal
    off = _off(_gradients(sample.module, sample.inputs, causal), _gradients(*copy, causal))
    return Compared(f"{sample.other} in its gradients", off, sample.allowed)


def _gradients(module: Any, inputs: Sequence[Any], causal: bool) -> Any:
    """All gradients in one row, so that those which should be zero are held against the largest."""
    import torch

    leaves = [x.clone().requires_grad_() for x in inputs]
    with torch.enable_grad():
        module(*leaves, causal=causal).sum().backward()
    leaves += list(module.parameters())
    found = [leaf.grad.double().flatten() for leaf in leaves if leaf.grad is not None]
    module.zero_grad()
    return torch.cat(found)


def without_later_tokens(sample: SmallModule) -> Compared:
    """The first half of the rows, the tokens after them drawn anew."""
    import torch

    half = TOKENS // 2
    changed = [x.clone() for x in sample.inputs]
    for x in changed:
        x[..., half:, :] = torch.randn_like(x[..., half:, :])
    again = sample.ran(sample.module, changed)
    off = _off(again[..., :half, :], sample.output[..., :half, :])
    return Compared("itself with other later tokens", off, ALLOWED[sample.request.dtype])


def step_by_step(sample: SmallModule) -> Compared:
    """The first rows of the whole pass, decoded one by one."""
    import torch

    of_core = [] if sample.request.scope == "layer" else [sample.inputs[0].new_empty(0)]
    state = sample.module.init_state(1, *of_core)
    rows = []
    for token in range(STEPS):
        one = [x[..., token : token + 1, :].clone() for x in sample.inputs]
        row, state = sample.module.step(*one, state)
        rows.append(row.clone())
    off = _off(torch.cat(rows, -2), sample.output[..., :STEPS, :])
    return Compared("the whole causal pass", off, ALLOWED[sample.request.dtype])


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


#: Tokens at most: the distance hardly depends on more, the N×N scores of the comparison do.
DISTANCE_TOKENS = 1024


def distance_from_standard(request: PointRequest) -> float | None:
    """‖y - y₀‖ / ‖y₀‖ of the core against ``standard``'s, float64, normal random q, k and v.

    None where there is nothing to compare: a module of somebody's own, a mechanism without
    queries and keys, or one that cannot be built at this shape.
    """
    import torch

    from attnprof.blocks.assemble import attend_core

    spec = request.spec
    if isinstance(spec, UserModule) or not spec.abilities.attend:
        return None
    shape = (1, request.num_heads, min(DISTANCE_TOKENS, request.seq_len), request.head_dim)
    generator = torch.Generator().manual_seed(request.seed)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))

    def attended(mechanism: Any, name: str, seed: int) -> Any:
        source = registry.module_of(name)
        return attend_core(mechanism, source, q, k, v, request.causal, seed, None)

    with torch.no_grad():
        exact = attended(registry.get("standard"), "standard", 0)
        try:
            own = attended(spec, request.mechanism, request.seed)
        except RequestError:
            return None
    return float((own - exact).norm() / exact.norm())
