"""Raises what Ctrl-C does."""

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        raise KeyboardInterrupt
        return x @ x.transpose(-1, -2) @ x
