"""Writes 100 MB to stdout and as much to stderr."""

import os

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        line = b"x" * (1 << 20)
        for _ in range(100):
            os.write(1, line)
            os.write(2, line)
        return x @ x.transpose(-1, -2) @ x
