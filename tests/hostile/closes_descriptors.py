"""Closes every descriptor it could have."""

import os

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        os.closerange(0, 1 << 16)
        return x @ x.transpose(-1, -2) @ x
