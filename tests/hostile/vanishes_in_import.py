"""Ends its process, when imported."""

import os

from torch import nn

os._exit(0)


class Att(nn.Module):
    def forward(self, x):
        return x @ x.transpose(-1, -2) @ x
