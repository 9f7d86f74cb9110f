"""A model's FLOPs a token as a Python file without dependencies, to paste into a trainer."""

from collections.abc import Sequence

from attnprof.models.conventions import PHASES, ModelSizes, count, dropped
from attnprof.models.flops_terms import TOKEN, Count, sequence_flops

#: Lengths of the self-test: around powers of two, and around every size of a mask.
_LENGTHS = (1, 2, 127, 128, 1000, 4096, 8192, 131072)

_FILE = '''"""FLOPs of {name} for model FLOPs utilisation (MFU).

Source: {source}; convention: {conventions}; written by attnprof {version}.
Domain: sequences of 1 token or more, each attending within itself; {logits}.
{notes}"""


def sequence_flops(seq_len, convention={default!r}, phase="train"):
    """Return the FLOPs of one sequence of seq_len tokens, as a whole number."""
    n = seq_len
    if n < 1:
        raise ValueError(f"seq_len is {{n}}: give 1 or more tokens")
{branches}
    raise ValueError(f"{{convention}} of {{phase}}: possible are {possible}")


def flops_per_token(seq_len, convention={default!r}, phase="train"):
    """Return the FLOPs of a token in a sequence of seq_len tokens, rounded (half up)."""
    return (2 * sequence_flops(seq_len, convention, phase) + seq_len) // (2 * seq_len)


def batch_flops(seq_lens, convention={default!r}, phase="train"):
    """Return the FLOPs of a batch of sequences, packed or not: attention stays within each."""
    return sum(sequence_flops(n, convention, phase) for n in seq_lens)


#: What attnprof counts: (convention, phase, seq_len) to FLOPs of the sequence.
EXPECTED = {{
{expected}}}

if __name__ == "__main__":
    for (convention, phase, seq_len), flops in EXPECTED.items():
        assert sequence_flops(seq_len, convention, phase) == flops, (convention, phase, seq_len)
    print(f"{{len(EXPECTED)}} shapes agree with attnprof")
# Written by attnprof model.
'''


def python_file(sizes: ModelSizes, conventions: Sequence[str], source: str, version: str) -> str:
    """Return the text of a file with ``flops_per_token``, ``batch_flops`` and its self-test."""
    counted = {(name, phase): count(sizes, name, phase) for name in conventions for phase in PHASES}
    masks = {mask for count in counted.values() for mask in count}
    near = {mask.size + step for mask in masks if mask.size for step in (-1, 0, 1, mask.size)}
    lengths = sorted({n for n in (*_LENGTHS, *near) if n > 0})
    expected = (
        f"    ({name!r}, {phase!r}, {n}): {sequence_flops(each, n)},\n"
        for (name, phase), each in counted.items()
        for n in lengths
    )
    notes = [
        f"{name} against executed: {'; '.join(found)}."
        for name in conventions
        if (found := dropped(sizes, name))
    ]
    return _FILE.format(
        name=_plain(sizes.name), source=_plain(source), conventions=", ".join(conventions),
        version=version, logits="logits of every token", default=conventions[0],
        notes="".join(f"{_plain(line)}\n" for line in (*sizes.notes, *notes)),
        branches="\n".join(_branch(*key, each) for key, each in counted.items()),
        possible=", ".join(conventions) + " of " + " and ".join(PHASES), expected="".join(expected),
    )  # fmt: skip


def _plain(text: str) -> str:
    """Return a text that cannot end a docstring."""
    return text.replace("\\", "/").replace('"', "'")


def _branch(convention: str, phase: str, counted: Count) -> str:
    terms = [f"{counted.get(TOKEN, 0)} * n"]
    terms += [f"{flops} * ({mask.python()})" for mask, flops in counted.items() if mask != TOKEN]
    lines = "".join(f"\n            + {term}" for term in terms[1:])
    test = f"    if (convention, phase) == ({convention!r}, {phase!r}):"
    return f"{test}\n        return (\n            {terms[0]}{lines}\n        )"


