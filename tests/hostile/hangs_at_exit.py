"""Registers something for the end that has none."""

import atexit
import time

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        atexit.register(time.sleep, 1000)
        return x @ x.transpose(-1, -2) @ x
