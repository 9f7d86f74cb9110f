"""FLOPs a token for MFU: a model's count by every convention, as numbers, closed forms and Python.

The numbers come from :mod:`attnprof.models.conventions`, the model's sizes from
:mod:`attnprof.models.mfu_sizes`. Entry points: :func:`mfu_report` for the command,
:func:`flops_per_token` for Python, :func:`python_file` for a trainer.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprof.arguments import at_least, choice
from attnprof.errors import RequestError
from attnprof.models.conventions import (
    EXECUTED,
    NAMES,
    NAMES_OF_CONVENTIONS,
    PHASES,
    TOKEN,
    Count,
    ModelSizes,
    count,
    dropped,
    expression,
    per_token,
    sequence_flops,
    summed,
    terms,
)
from attnprof.record import MfuRecord, Report

#: The most tokens of a sequence that is asked for: sizes beyond are typing errors.
LONGEST = 2**40


def conventions_of(name: str) -> list[str]:
    """Return the conventions that a name stands for: itself, or all.

    Raises :class:`RequestError` for an unknown one.
    """
    choice("convention", name, [*NAMES_OF_CONVENTIONS, "all"])
    return list(NAMES_OF_CONVENTIONS) if name == "all" else [name]


def flops_of(
    sizes: ModelSizes,
    lengths: Sequence[int],
    convention: str,
    phase: str,
    images: Sequence[int] = (),
) -> int:
    """Return the FLOPs of a batch of sequences, each attending within itself.

    ``images`` are the patches of each image beside the text. Raises :class:`RequestError` for
    images if the model has no vision encoder of a known kind.
    """
    counted = count(sizes, convention, phase)
    text = sum(sequence_flops(counted, n) for n in lengths)
    if not images:
        return text
    if sizes.images is None:
        raise RequestError(f"{sizes.name} has no vision encoder whose FLOPs are known")
    return text + sizes.images.flops(images, convention, phase)


def flops_per_token(
    config: "str | Path | Mapping[str, Any]", seq_len: int, convention: str = "palm",
    phase: str = "train",
) -> int:  # fmt: skip
    """Return the FLOPs of a token in a sequence of ``seq_len`` tokens, for MFU.

    ``config`` is a path, a name as ``attnprof model`` takes it, or a mapping as in config.json;
    ``convention`` one of palm, megatron, torchtitan, verl, 6n and executed; ``phase`` forward or
    train. Rounded to the nearest whole number. Raises :class:`attnprof.errors.RequestError` for a
    wrong request.

    >>> attnprof.flops_per_token({"model_type": "llama"}, 4096, "executed")
    43401478144
    """
    from attnprof.models.mfu_sizes import sizes_of

    at_least("seq_len", seq_len, 1, LONGEST)
    choice("phase", phase, PHASES)
    choice("convention", convention, NAMES_OF_CONVENTIONS)
    return per_token(flops_of(sizes_of(config), [seq_len], convention, phase), seq_len)


def mfu_report(
    sizes: ModelSizes, conventions: Sequence[str], lengths: Sequence[int],
    environment: Mapping[str, Any] | None = None,
) -> Report:  # fmt: skip
    """Return a record a convention and phase, at a batch of sequences of these lengths.

    The summary has the terms of each convention's training step, as FLOPs a token of that batch.
    """
    tokens = sum(lengths)
    records, by_term = [], dict[str, dict[str, int]]()
    for convention in conventions:
        for phase in PHASES:
            flops = flops_of(sizes, lengths, convention, phase)
            records.append(
                MfuRecord(
                    convention=convention, phase=phase, flops_per_token=per_token(flops, tokens),
                    expression=str(expression(count(sizes, convention, phase))),
                    dropped="; ".join(dropped(sizes, convention, phase)),
                    tokens=tokens, flops=flops,
                )
            )  # fmt: skip
        by_term[convention] = {
            NAMES[name]: per_token(sum(sequence_flops(each, n) for n in lengths), tokens)
            for name, each in terms(sizes, convention).items()
        }
    everything = sum(x.entries for x in sizes.weights.values())
    summary = {
        "name": sizes.name, "lengths": list(lengths), "parameters": everything,
        "active_parameters": sum(x.active for x in sizes.weights.values()),
        "terms": by_term, "notes": list(sizes.notes), "answer": _answer(sizes, lengths),
    }  # fmt: skip
    return Report("model --mfu", records, summary, environment or {})


def _answer(sizes: ModelSizes, lengths: Sequence[int]) -> str:
    """Return the sentence on the FLOPs of a trained token, and attention's share of them."""
    tokens = sum(lengths)
    step = terms(sizes, EXECUTED)
    attention = summed(step.get(name, {}) for name in ("scores", "index scores"))
    whole = flops_of(sizes, lengths, EXECUTED, "train")
    share = sum(sequence_flops(attention, n) for n in lengths) / whole
    lengths_text = f"N = {lengths[0]:,}" if len({*lengths}) == 1 else f"{len(lengths)} sequences"
    return (
        f"a trained token executes {per_token(whole, tokens):,} FLOPs at {lengths_text}, "
        f"{share:.1%} of them attention over pairs"
    )


#: Lengths of the self-test: around powers of two, and around every size of a mask.
_LENGTHS = (1, 2, 127, 128, 1000, 4096, 8192, 131072)

_FILE = '''"""FLOPs of {name} for model FLOPs utilisation (MFU).

Source: {source}; convention: {conventions}; written by attnprof {version}.
Domain: sequences of 1 token or more, each attending within itself; logits of every token.
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
        f"{name} against executed: {'; '.join(sentences)}."
        for name in conventions
        if (sentences := dropped(sizes, name))
    ]
    return _FILE.format(
        name=_plain(sizes.name), source=_plain(source), conventions=", ".join(conventions),
        version=version, default=conventions[0],
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
