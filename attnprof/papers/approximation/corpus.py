"""A small language to translate, made up: what a word becomes depends on what is near and far."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

#: What pads a sequence, begins and ends it; words follow.
PAD, BEGIN, END, FIRST = 0, 1, 2, 3


@dataclass(frozen=True)
class Corpus:
    """Pairs of sentences over ``vocabulary`` tokens, both languages' words being the same numbers.

    A sentence is of two dialects, which its first word tells: each has a dictionary of its own,
    drawn from ``seed`` (a rule that reaches over the whole sentence). Words come in pairs; where
    one of the first half of the words stands before one of the second, the two change places (a
    rule of neighbours). Sentences fill half to all of their places.
    """

    vocabulary: int
    seed: int

    def pairs(self, count: int, tokens: int, made: Generator) -> tuple[Tensor, Tensor]:
        """Sentences and their translations, (count, tokens) whole numbers each."""
        words = self.vocabulary - FIRST
        length = torch.randint(tokens // 2, tokens - 1, (count, 1), generator=made)
        source = torch.randint(words, (count, tokens + tokens % 2), generator=made)
        dialect = source[:, :1] % 2 == 0
        left, right = source.view(count, -1, 2).unbind(-1)
        swapped = (left < words // 2) & (right >= words // 2)
        placed = torch.stack(
            (torch.where(swapped, right, left), torch.where(swapped, left, right)), -1
        ).view(count, -1)
        own = torch.Generator().manual_seed(self.seed)
        one, other = (torch.randperm(words, generator=own) for _ in range(2))
        target = torch.where(dialect, one[placed], other[placed])
        place = torch.arange(tokens)
        inside = place < length
        ended = torch.where(place == length, END, PAD)
        source, target = (
            torch.where(inside, x[:, :tokens] + FIRST, ended) for x in (source, target)
        )
        begun = torch.cat((torch.full((count, 1), BEGIN), target[:, :-1]), 1)
        return source, begun
