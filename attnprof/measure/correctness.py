"""Check that a module computes what it claims: once, at a small shape, before it is timed.

Its output is compared with another number format, other code and itself: :class:`SmallModule`. On
request its distance from softmax attention is measured: that is how good an approximation it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnprof import registry
from attnprof.blocks.core import attend_core
from attnprof.errors import RequestError
from attnprof.measure.request import PointRequest, UserModule, is_module
from attnprof.measure.subject import build_subject, is_out_of_memory, make_inputs, make_module
from attnprof.user_code import error_text

#: Tokens (odd, no multiple of a block), heads and the largest head width of the check.
TOKENS, HEADS, WIDTH = 33, 2, 16
#: Decoding steps that are compared.
STEPS = 9
#: Largest difference allowed, as a share of the largest output: about ten roundings of a short
#: format; hundreds of float32, for iterated inverses multiply them.
ALLOWED = {"float64": 1e-9, "float32": 3e-5, "float16": 1e-2, "bfloat16": 8e-2}


@dataclass(frozen=True)
class Verdict:
    """The result of a check: ``wrong`` says what differs (None: nothing), from ``against``.

    Both are None where the mechanism cannot be built at the small shape.
    """

    wrong: str | None = None
    against: str | None = None


_VERDICTS: dict[tuple[Any, ...], Verdict] = {}


def check_module(request: PointRequest) -> Verdict:
    """Return the verdict on a mechanism, found once a process; a user's module makes no claim."""
    if is_module(request.mechanism):
        return Verdict()
    key = check_key(request)
    if key not in _VERDICTS:
        _VERDICTS[key] = _verdict(request)
    return _VERDICTS[key]


def check_key(request: PointRequest) -> tuple[Any, ...]:
    """Return the key of a verdict: points with the same key share it."""
    return (
        request.mechanism, repr(sorted(request.params.items())), request.dtype, request.causal,
        _KINDS[request.phase], request.scope, request.device, request.seed,
        min(WIDTH, request.head_dim),
    )  # fmt: skip


#: Phases that are checked alike.
_KINDS = {"forward": "forward", "backward": "training", "train": "training", "decode": "decode"}


def _verdict(request: PointRequest) -> Verdict:
    kind = _KINDS[request.phase]
    small = replace(
        request, seq_len=TOKENS, num_heads=HEADS, head_dim=min(WIDTH, request.head_dim),
        batch_size=1, phase="forward", causal=request.causal or kind == "decode",
    )  # fmt: skip
    references: list[str] = []
    wrong = None
    state = torch.get_rng_state()
    try:
        with torch.device(request.device), torch.no_grad():
            for against, output, expected, allowed in SmallModule(small).compared(kind):
                references.append(against)
                off = _relative_difference(output, expected)
                if not off <= allowed and wrong is None:  # not a number is wrong, too
                    wrong = (
                        f"does not compute what it claims: at {TOKENS} tokens its {small.dtype} "
                        f"output is {off:.2g} of the largest value away from {against} "
                        f"({allowed:g} allowed); --no-check measures it all the same"
                    )
    except Exception as error:  # noqa: BLE001 - a plug-in may raise anything at a shape this small
        if _is_bug(error, request):
            return Verdict(f"cannot be checked, it raises {error_text(error)}")
        return Verdict(wrong)  # the point's own shape is judged when it runs
    finally:
        torch.set_rng_state(state)
    return Verdict(wrong, "; ".join(references) or None)


class SmallModule:
    """A module of few tokens with inputs and output, on torch's default device."""

    def __init__(self, request: PointRequest) -> None:
        self.request = request
        self.module = make_module(request)
        self.inputs = make_inputs(request)
        self.output = self.run(self.module, self.inputs)

    def compared(self, kind: str) -> Iterator[tuple[str, Any, Any, float]]:
        """Yield each comparison: its name, an output, the expected one, the tolerance.

        The expected output is that of float64 on the same weights and inputs (float32 if the module
        is float64); of a mechanism declared to compute the same; of itself with other later tokens,
        if causal; of the whole pass against decoding steps; and of float64 in its gradients.
        """
        dtype = self.request.dtype
        other = "float32" if dtype == "float64" else "float64"
        allowed = max(ALLOWED[dtype], ALLOWED[other])
        expected = self.in_format(self.request, other)
        if expected is not None:
            yield other, self.output, expected, allowed
        if twin := twin_of(self.request):
            mine, same = (self.in_format(request, "float64") for request in (self.request, twin))
            if mine is not None and same is not None:
                usual = registry.get(twin.mechanism).params
                settings = [f"{k}={v}" for k, v in twin.params.items() if v != usual[k]]
                yield " ".join([twin.mechanism, *settings]), mine, same, ALLOWED["float64"]
        if self.request.causal:
            half = TOKENS // 2
            changed = [x.clone() for x in self.inputs]
            for x in changed:
                x[..., half:, :] = torch.randn_like(x[..., half:, :])
            again, whole = (x[..., :half, :] for x in (self.run(self.module, changed), self.output))
            yield "itself with other later tokens", again, whole, ALLOWED[dtype]
        if kind == "decode":
            whole = self.output[..., :STEPS, :]
            yield "the whole causal pass", self.decoded(), whole, ALLOWED[dtype]
        if kind == "training" and (copy := self.copied(replace(self.request, dtype=other))):
            gradients = (self.gradients(self.module, self.inputs), self.gradients(*copy))
            yield f"{other} in its gradients", *gradients, allowed

    def run(self, module: Any, inputs: Sequence[Any]) -> Any:
        """Return a module's output for these inputs."""
        return module(*(x.clone() for x in inputs), causal=self.request.causal)

    def copied(self, request: PointRequest) -> tuple[Any, list[Any]] | None:
        """Return a request's module with these weights, and inputs; None if shapes differ."""
        module, weights = make_module(request), self.module.state_dict()
        shapes = ({k: v.shape for k, v in some.items()} for some in (module.state_dict(), weights))
        if next(shapes) != next(shapes):
            return None
        module.load_state_dict(weights)
        return module, [x.to(getattr(torch, request.dtype)) for x in self.inputs]

    def in_format(self, request: PointRequest, dtype: str) -> Any:
        """Return the output in a number format; None where torch or the weights forbid it.

        A plug-in may be written for one format: ``checked`` then does not name the other.
        """
        try:
            copy = self.copied(replace(request, dtype=dtype))
            return None if copy is None else self.run(*copy)
        except RuntimeError as error:  # torch's word for all it cannot do
            if _is_bug(error, request):
                raise
            return None

    def decoded(self) -> Any:
        """Return the first rows of the output, decoded one by one."""
        like = [] if self.request.scope == "layer" else [self.inputs[0].new_empty(0)]
        state = self.module.init_state(1, *like)
        rows = []
        for token in range(STEPS):
            one = [x[..., token : token + 1, :].clone() for x in self.inputs]
            row, state = self.module.step(*one, state)
            rows.append(row.clone())
        return torch.cat(rows, -2)

    def gradients(self, module: Any, inputs: Sequence[Any]) -> Any:
        """Return all gradients in one row: small ones are judged relative to the largest."""
        leaves = [x.clone().requires_grad_() for x in inputs]
        with torch.enable_grad():
            module(*leaves, causal=self.request.causal).sum().backward()
        leaves += list(module.parameters())
        gradients = [leaf.grad.double().flatten() for leaf in leaves if leaf.grad is not None]
        module.zero_grad()
        return torch.cat(gradients)


def _is_bug(error: Exception, request: PointRequest) -> bool:
    """Return whether one of our mechanisms failed, not just an operation missing in a format."""
    ours = type(request.spec).__module__.startswith("attnprof.")
    unknown = isinstance(error, NotImplementedError) or "not implemented for" in str(error)
    return ours and isinstance(error, RuntimeError) and not unknown and not is_out_of_memory(error)


def _relative_difference(output: Any, expected: Any) -> float:
    """Return the largest difference, over the largest expected value."""
    output, expected = output.double(), expected.double()
    return float((output - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def check_code(request: PointRequest, run: Callable[[], Any]) -> str | None:
    """Return what is wrong with compiled code in a forward pass at the point's shape, or None."""
    if request.phase != "forward":
        return None
    off = _relative_difference(run(), build_subject(request).call())
    if off <= ALLOWED[request.dtype]:
        return None
    return (
        f"compiled code does not compute what the module does: its output is {off:.2g} of the "
        f"largest value away ({ALLOWED[request.dtype]:g} allowed); --no-check measures it all "
        "the same"
    )


def twin_of(request: PointRequest) -> PointRequest | None:
    """Return the request for the mechanism declared ``same_as`` this one, with its parameters."""
    spec = request.spec
    named, settings = spec.same_as or ("", {})
    if spec.same_as is None or (named and "same_as" not in vars(type(spec))):  # it is inherited
        return None
    name = named or request.mechanism
    parameters = registry.get(name).params
    params = {k: v for k, v in request.params.items() if k in parameters} | settings
    if name == request.mechanism and registry.get(name, **params) == spec:
        return None
    return replace(request, mechanism=name, params=params)


#: Tokens at most: the distance hardly depends on more, the N×N scores of the comparison do.
DISTANCE_TOKENS = 1024


def distance_from_standard(request: PointRequest) -> float | None:
    """Return ‖y - y₀‖ / ‖y₀‖ of the core's output y, y₀ being ``standard``'s.

    Both get normal random q, k and v in float64. None for a user's module, a mechanism without
    queries and keys, or one that cannot be built at this shape.
    """
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
            result = attended(spec, request.mechanism, request.seed)
        except RequestError:
            return None
    return float((result - exact).norm() / exact.norm())
