"""Reads memory that is not there."""

import ctypes

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        ctypes.string_at(0)
        return x @ x.transpose(-1, -2) @ x
