"""Asks Python to end with a code that means something else here."""

import sys

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        sys.exit(5)
        return x @ x.transpose(-1, -2) @ x
