"""What a point's memory is made of: a training step's parts, a decoder's caches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attnprof.blocks.cache import TokenCache
from attnprof.measure.allocations import measure_held
from attnprof.measure.decoding import owners
from attnprof.measure.subject import Subject


@dataclass(frozen=True)
class MemoryParts:
    """Bytes by purpose; None where the phase has no such thing.

    Parts overlap in time, not in the peak: activations are freed while gradients appear.
    """

    activations_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    kv_cache_bytes: int | None = None
    state_bytes: int | None = None


def measure_parts(subject: Subject, phase: str, device: str, torch: Any) -> MemoryParts:
    """The parts of a phase; a forward pass alone has none."""
    if phase == "decode":
        return _decoder(subject)
    if phase == "forward" or subject.forward is None:
        return MemoryParts()
    subject.reset()
    activations = measure_held(subject.forward, device, torch)
    subject.prepare()
    subject.call()
    gradients = [leaf.grad for leaf in subject.leaves if leaf.grad is not None]
    held = sum(_storages(gradients).values())
    del gradients
    subject.reset()
    return MemoryParts(activations, held, adamw_bytes(subject.module))


def adamw_bytes(module: Any) -> int:
    """AdamW's two moments in the parameters' own format; its step counts are left out."""
    return sum(2 * p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def _decoder(subject: Subject) -> MemoryParts:
    """Storage after a step: that of token caches, and of all a state holds."""
    subject.prepare()
    subject.call()
    caches = [part.rows for part in owners(subject.state) if isinstance(part, TokenCache)]
    found = MemoryParts(
        kv_cache_bytes=sum(_storages(caches).values()),
        state_bytes=sum(_storages(_tensors(subject.state)).values()),
    )
    subject.reset()
    return found


def _tensors(state: Any) -> Iterator[Any]:
    """The tensors a state holds: itself, in its containers, in its objects' attributes."""
    containers = [state] if isinstance(state, (list, tuple, dict)) else []
    objects = [vars(owner) for owner in owners(state)]
    if hasattr(state, "untyped_storage"):
        yield state
    for container in (*containers, *objects):
        values = container.values() if isinstance(container, dict) else container
        for value in values:
            inside = value if isinstance(value, (list, tuple)) else [value]
            yield from (item for item in inside if hasattr(item, "untyped_storage"))


def _storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Bytes of each storage once, whatever views there are of it."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
