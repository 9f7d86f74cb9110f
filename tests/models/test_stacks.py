"""First layers that tell of all of a model's: sums over them, against sums over all layers."""

import pytest

from attnprof.models.model_forms import at_layers
from attnprof.models.stacks import LayerStack, samples_of

#: Kinds of layers in stacks, each with its period: what one more period of layers is.
STACKS = {
    "alike": ([(1,) * 12], 1),
    "windows 5:1, 26 layers": ([((1,) * 5 + (2,)) * 4 + (1, 1)], 6),
    "windows 5:1, 14 layers": ([((1,) * 5 + (2,)) * 2 + (1, 1)], 6),
    "a dense layer first": ([(1,) + (2,) * 11], 1),
    "attention in every fourth": ([(1, 1, 1, 2) * 3], 4),
    "two stacks whose first layers have more": ([(1,) + (2,) * 5, (3,) + (4,) * 5], 1),
    "two stacks, one longer": ([(1,) * 6, (2,) * 11], 1),
    "three stacks, one of few layers": ([(1,) * 24, (2,) * 2, (3,) * 7], 1),
    "a stack of all different layers beside another": ([(1, 2, 3), (4,) * 24], 1),
}  # fmt: skip
#: What is beside layers, and what one of each kind has.
BESIDE, EACH = 7, {1: 11, 2: 130, 3: 1700, 4: 19000}


def total(stacks):
    return BESIDE + sum(EACH[kind] for kinds in stacks for kind in kinds)


@pytest.mark.parametrize("name", STACKS)
def test_sums_in_layers_are_those_of_models_with_more_of_them(name):
    stacks, period = STACKS[name]
    made = [LayerStack(f"stack{n}", kinds) for n, kinds in enumerate(stacks)]
    samples = samples_of(made)
    values = [
        total(stack.kinds[: lengths[stack.path]] for stack in made) for lengths in samples.lengths
    ]
    assert samples.summed(values) == total(stacks)
    formula = samples.summed(values, by_layers=True)
    assert {str(name) for name in formula.free_symbols} == {*samples.symbols.values()} != set()
    apart = len(samples.slopes) > 1
    for turns in (0, 1, 5):
        longer = [
            kinds + kinds[-period:] * ((turns + apart * place) * (stack.path in samples.symbols))
            for place, (stack, kinds) in enumerate(zip(made, stacks, strict=True))
        ]
        numbers = {s.path: len(kinds) for s, kinds in zip(made, longer, strict=True)}
        assert at_layers(formula, samples.numbers(numbers)) == total(longer)
