"""Rules for absorbed latent attention: scores over latents and rotary parts, mixed latents.

Every query sees every row that the kernel is given. The cache is read once for all heads, and
nothing is held beside operands and result.
"""

from typing import Any

from attnprof.trace.rules.table import rules
from attnprof.trace.rules.units import MAC, OTHER, A, Counts, D, E, M
from attnprof.trace.rules.workspaces import workspaces
from attnprof.trace.sizes import is_floating, product, size_of

KERNEL = "attnprof::latent_attention"


def _counts(_out: Any, call: Any) -> Counts:
    """Count two products and a scaled softmax on each pair of a head's query and a row."""
    rank, keys = size_of(call.latents.shape[-1]), size_of(call.latents.shape[2])
    pairs = product(call.query.shape[:3]) * keys
    masked = call.attn_mask is not None and is_floating(call.attn_mask)
    each = M + OTHER + 2 * A + E + D + A * masked
    return each * pairs + MAC * (pairs * (size_of(call.query.shape[-1]) + rank))


rules({KERNEL: _counts})
workspaces({KERNEL: lambda _out, _call: 0})
