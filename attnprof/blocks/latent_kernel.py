"""The kernel of absorbed latent attention, as an operation of torch.

Engines decode latent attention (MLA) without making a head's keys and values from the latents: each
query meets the cached row itself, latent and rotary part, and the result is a mix of latents.
:func:`latent_attention` is such an operation: plain arithmetic gives its result on real tensors,
shapes on tensors without values. Its costs are those of :mod:`attnprof.trace.rules.attention`.
"""

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("attnprof::latent_attention", mutates_args=())
def latent_attention(
    query: Tensor, latents: Tensor, rotary: Tensor, attn_mask: Tensor | None, scale: float
) -> Tensor:
    """Return mixed latents (batch, heads, tokens, rank) of queries on rows of a latent cache.

    ``query`` is (batch, heads, tokens, rank + rotary width), ``latents`` (batch, 1, keys, rank) and
    ``rotary`` (batch, 1, keys, rotary width). ``attn_mask`` is true where a query sees a key, or is
    added to scores.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    keys = torch.cat((latents, rotary), -1).to(wide)
    scores = query.to(wide) @ keys.mT * scale
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return (scores.softmax(-1) @ latents.to(wide)).to(query.dtype)


@latent_attention.register_fake
def _(query: Any, latents: Any, *_: Any) -> Any:
    return query.new_empty((*query.shape[:3], latents.shape[-1]))
