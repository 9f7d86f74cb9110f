"""Asks Python to end, when imported."""

import sys

from torch import nn

sys.exit(0)


class Att(nn.Module):
    def forward(self, x):
        return x @ x.transpose(-1, -2) @ x
