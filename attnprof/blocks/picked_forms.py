"""Forms of attention to picked keys, which return the same: copied keys, or a mask over all."""

from typing import Any, ClassVar

from attnprof.costs import Number, is_plain
from attnprof.errors import RequestError
from attnprof.mechanism import DENSE_MASK, Variant
from attnprof.workload import Workload

#: Tokens for each that a row picks, up to which ``auto`` takes a mask. Products of a row with keys
#: of its own run slower than those of whole matrices: on processors both took as long at 4 to 23
#: tokens for each, copied keys sooner in a forward pass than in training.
SHORT = 8


class PickedForms:
    """A mixin of mechanisms whose rows pick keys.

    ``impl=gathered`` copies the picked keys and multiplies only these, ``dense-mask`` masks the
    products of all. ``auto`` is the first for a step and for texts of more than ``SHORT`` tokens
    for each that a row picks, else the second.
    """

    impl = "gathered"  # not annotated: subclasses have a parameter of this name at its own place
    variants: ClassVar[tuple[Variant, ...]] = (DENSE_MASK,)
    forms: ClassVar[tuple[str, ...]] = ("gathered", "dense-mask", "auto")

    @property
    def picked_tokens(self) -> int:
        """Number of tokens that a row picks, if there are as many."""
        raise NotImplementedError

    def gathers(self, tokens: Any, *, step: bool) -> bool:
        """Return whether picked keys of a text of so many tokens are copied.

        Raises :class:`RequestError` if ``auto`` is to decide on a symbol.
        """
        if self.impl != "auto" or step:
            return self.impl != "dense-mask"
        if not is_plain(tokens):
            raise RequestError(
                "impl=auto depends on the number of tokens: give impl=gathered or impl=dense-mask"
            )
        return bool(tokens > SHORT * self.picked_tokens)

    def choice(self, workload: Workload) -> str:
        """Return a sentence on the form that ``auto`` takes; "" for another ``impl``."""
        if self.impl != "auto":
            return ""
        tokens: Number = workload.seq_len
        copied = self.gathers(tokens, step=workload.phase == "decode")
        form = "gathered" if copied else "dense-mask"
        few = SHORT * self.picked_tokens
        why = f"a row picks up to {self.picked_tokens} of {tokens} tokens; up to {few} are masked"
        if workload.phase == "decode":
            why = "a step copies what it picks"
        return f"impl=auto is {form} here: {why}"
